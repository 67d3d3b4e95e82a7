"""What the large operands of products hold: zeros, or copies of rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.torch_ops import Ops

from .counted import check_share
from .counted import counted as counted_of

SCRIPT = """
import torch
from torch import nn
torch.set_num_threads(1)
F = nn.functional
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64))
        self.picture = nn.Conv2d(3, 16, 5)
        self.table = nn.Parameter(torch.randn(4000, 64))
        near = torch.rand(1500, 1500)
        self.near, self.dense = (near < 0.003).float(), near
        self.mask = nn.Parameter((near < 0.003).float())
        self.tokens = nn.Embedding(50, 64)
        self.reads = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    def forward(self, x, images, ids):
        {copied}
        return {made}  # HERE
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100_000):
    x, images = torch.randn(100, 256), torch.randn(8, 3, 64, 64)
    ids = torch.randint(0, 4000, (512,))
    loss = net(x, images, ids).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
COPIED, HERE = (
    next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if word in line)
    for word in ("{copied}", "# HERE")
)


def counted(folder: Path, made: str, copied: str = "") -> Ops:
    return counted_of(folder, SCRIPT.format(made=made, copied=copied))


@pytest.mark.parametrize(
    ("made", "left"),
    [
        ("self.near @ torch.randn(1500, 64, requires_grad=True)", 0.003),
        ("torch.mm(torch.randn(64, 1500, requires_grad=True), self.near)", 0.003),
        ("F.one_hot(ids, 4000).float() @ self.table", 1 / 4000),
        ("F.linear(F.one_hot(ids, 4000).float(), self.table.T)", 1 / 4000),
        ("torch.einsum('nm,md->nd', F.one_hot(ids, 4000).float(), self.table)", 1 / 4000),
        # Of what a gate leaves, which has a gradient.
        ("(F.one_hot(ids, 4000) * self.table[0, 0]) @ self.table", 1 / 4000),
    ],
)
def test_products_of_zeros(made: str, left: float, tmp_path: Path) -> None:
    lines = [x for x in counted(tmp_path, made).lines if x.mostly_zero_ns]
    assert {x.at.line for x in lines} == {HERE}
    zeros, nonzero = (
        sum(y) for y in zip(*((x.mostly_zero_ns, x.nonzero_ns) for x in lines), strict=True)
    )
    assert nonzero / zeros == pytest.approx(left, rel=0.2)


@pytest.mark.parametrize(
    "made",
    [
        "self.dense @ torch.randn(1500, 64, requires_grad=True)",
        "self.mask @ torch.randn(1500, 64)",  # it learns
        "self.near.tril() * self.table[0, 0]",  # no product of matrices
        "self.near.to_sparse_csr() @ torch.randn(1500, 64, requires_grad=True)",
        "torch.eye(64) @ self.table[:64]",  # small
        "torch.zeros(500, 64) @ self.table[:64].T",  # all of it, as of a first state
    ],
)
def test_what_is_not_of_zeros(made: str, tmp_path: Path) -> None:
    assert not any(x.mostly_zero_ns for x in counted(tmp_path, made).lines)


BODY, PICTURE = "self.body(x)", "self.picture(images)"
READ = "self.reads(self.tokens(ids))"
ELSEWHERE = "self.reads.self_attn(x, *[self.tokens(ids % 50).view(16, 32, 64)] * 2)[0]"


@pytest.mark.parametrize(
    ("copied", "made", "copies"),
    [
        ("x = x.repeat_interleave(8, 0)", BODY, 8),
        ("x = x.repeat(6, 1)", BODY, 6),
        ("x = x[:, None].expand(-1, 8, -1)", BODY, 8),
        ("x = x[:, None].expand(-1, 8, -1).reshape(-1, 256)", BODY, 8),
        ("x = x[None].expand(8, -1, -1)", BODY, 8),
        ("x = x[torch.arange(100).repeat_interleave(8)]", BODY, 8),
        ("x = (x > 1).float().repeat(6, 1)", BODY, 6),
        ("images = images.repeat_interleave(5, dim=0)", PICTURE, 5),
        ("images = images.repeat(3, 1, 1, 1)", PICTURE, 3),
        ("ids = (ids % 50).view(16, 32).repeat_interleave(8, dim=0)", READ, 8),
        ("ids = (ids % 50).view(16, 32).repeat(8, 1)", READ, 8),
    ],
)
def test_copies_of_rows(copied: str, made: str, copies: int, tmp_path: Path) -> None:
    script, most = SCRIPT.format(made=made, copied=copied), 1 - 1 / copies
    ops = check_share(tmp_path, script, HERE, lambda x: x.copied_ns, 0.5 * most, most + 0.001)
    assert {(x.at.line, x.copies) for x in ops.copied if x.at} == {(COPIED, copies)}


def test_rows_that_were_picked_elsewhere_are_not_where_others_were_copied(tmp_path: Path) -> None:
    """As many as there are samples."""
    picks = "ids = torch.randint(0, 4000, (512,)); x[torch.randint(0, 50, (100,))].sum()"
    script = SCRIPT.replace("ids = torch.randint(0, 4000, (512,))", picks)
    ops = counted_of(tmp_path, script.format(made=BODY, copied="x = x[:, None].expand(-1, 8, -1)"))
    assert {(x.at.line, x.copies) for x in ops.copied if x.at} == {(COPIED, 8)}


WAVES = "(x.sin() * x.cos()).mean() * self.table[0]"
# Equal samples, and copies of something else, once for each of them.
EQUAL = "x = torch.stack([torch.arange(256.0)] * 1600); x[:, None, :4].expand(-1, 8, -1)"
IN_ROWS = "x = x[:, None].expand(-1, 64, -1).reshape(100, 64 * 256)"  # a call takes over 100 µs


@pytest.mark.parametrize(
    ("copied", "copies"),
    [
        (IN_ROWS, 64),  # each row holds its numbers 64 times
        ("x = x.repeat(64, 1)", 64),
        ("x = torch.arange(256.0).expand(6400, -1)", 6400),
        ("x = torch.randn(1600, 256)", 0),
        (f"{IN_ROWS} + torch.randn(64 * 256)", 0),
        ("x = torch.ones(1600, 256)", 0),  # alike without copies
        (EQUAL, 0),
        ("x = F.interpolate(torch.randn(1, 1, 800, 128), scale_factor=2)[0, 0]", 0),  # as data may
    ],
)
def test_functions_of_copied_numbers(copied: str, copies: int, tmp_path: Path) -> None:
    script, ends = SCRIPT.format(made=WAVES, copied=copied), (0.6, 1.0) if copies else (0.0, 0.0)
    ops = check_share(tmp_path, script, HERE, lambda x: x.copied_ns, *ends)
    assert {(x.at.line, x.copies) for x in ops.copied if x.at} == (
        {(COPIED, copies)} if copies else set()
    )


def test_samples_that_a_loader_copied(tmp_path: Path) -> None:
    """A user's history for each of its candidates: the line that computes is all that is known."""
    copied = "x = torch.stack([row for row in x for _ in range(8)])"
    (found,) = counted(tmp_path, BODY, copied).copied
    assert found.at and (found.at.line, found.copies) == (HERE, 8)


@pytest.mark.parametrize(
    ("made", "least"),
    [
        ("self.body(x).tanh().mul(2)", 0.8),  # what is computed of copies row by row
        ("self.body(x) * torch.randn(800, 64)", 0.1),  # random numbers: no copies
        ("self.body(x).tanh() @ torch.randn(64, 900)", 0.1),  # no weight
    ],
)
def test_what_follows_from_copies(made: str, least: float, tmp_path: Path) -> None:
    ops = counted(tmp_path, made, "x = x.repeat_interleave(8, 0)")
    here = [x for x in ops.lines if x.at.line == HERE]
    assert sum(x.copied_ns for x in here) > least * sum(x.elapsed_ns for x in here)


@pytest.mark.parametrize(
    ("copied", "made"),
    [
        ("", BODY),
        ("x = torch.cat([x.repeat(8, 1), torch.randn(7, 256)])", BODY),
        ("x = x.repeat(8, 1) + torch.randn(800, 1)", BODY),
        ("x = F.dropout(x.repeat(8, 1))", BODY),
        ("x = x[torch.randint(0, 100, (800,))]", BODY),  # not a regular pattern
        ("x = torch.stack([*x[:25], *x[:25], *x[:25], *x[:25]])", BODY),  # few samples, as data
        ("x = torch.stack([x[0]] * 100)", BODY),
        ("images = images.flip(0)", PICTURE),
        ("ids = (ids % 50).view(16, 32)", READ),
        ("x = torch.randn(1, 64, 64).expand(16, -1, -1)", ELSEWHERE),
    ],
)
def test_other_rows(copied: str, made: str, tmp_path: Path) -> None:
    ops = counted(tmp_path, made, copied)
    assert ops.copied == () and not any(x.copied_ns for x in ops.lines)


@pytest.mark.parametrize(
    ("copied", "made", "share"),
    [
        ("w = torch.zeros(256, 512); w[:64] = self.body[0].weight.T[:64]", "x @ w", 0.75),
        ("w = x.new_zeros(800, 256); w[:100, :128] = x[:, :128]", "self.body(w)", 0.9375),
        ("w = torch.zeros(64, 1000, dtype=torch.cfloat); w[:, :250] = self.table[:250, 0]",
         "torch.einsum('ab,cb->ac', torch.randn(32, 1000, dtype=torch.cfloat), w).real", 0.75),
        ("w = torch.zeros(256, 512); w[:250] = 1.0", "x @ w * self.table[0, 0]", 0.0),
        ("w = torch.zeros(256, 512)", "x @ w + self.table[0, 0]", 0.0),
        ("w = self.body[0].weight.T.relu(); w = w * 0", "x @ w", 0.0),
    ],
)  # fmt: skip
def test_zeros_that_are_written_in_part(
    copied: str, made: str, share: float, tmp_path: Path
) -> None:
    lines = counted(tmp_path, made, copied).lines
    unwritten = max(x.unwritten_ns / x.elapsed_ns for x in lines if x.at.line == HERE)
    assert unwritten <= share + 0.001
    assert unwritten >= share / 3
    filling = sum(x.unwritten_ns for x in lines if x.at.line == COPIED)
    assert bool(filling) == bool(share)
