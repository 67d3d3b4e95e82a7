"""The time of backward by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tdiag.evidence.torch_ops import Ops

from .counted import counted

SCRIPT = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
F = nn.functional
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        for _ in range(8):
            torch.randn(400, 400) @ torch.randn(400, 400)
        return grad * 2
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(400, 400), nn.Linear(400, 400)
    def forward(self, x):
        x = self.first(x)
        x = {made}  # HERE
        return self.last(x)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100_000):
    loss = net(torch.randn(8, 400)).square().mean()
    {more}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LINES = {
    name: number
    for number, line in enumerate(SCRIPT.splitlines(), 1)
    for name in ("self.first(x)", "# HERE", "self.last(x)", "{more}")
    if name in line
}
RUNS = "abc"  # a stall of the machine is longer than these steps


class Shares:
    """Of backward, 0..1, by a text in the line; ``other``: of no line."""

    def __init__(self, ops: Ops) -> None:
        assert ops.backward_other_ns is not None
        self.ops, whole = ops, ops.measured_backward_ns
        self.other = ops.backward_other_ns / whole
        spent: Counter[int] = Counter()
        for line in ops.lines:
            spent[line.at.line] += round(line.backward.get("elapsed_ns", 0.0))
        self.of = {name: spent[number] / whole for name, number in LINES.items()}
        self.here, self.more = self.of["# HERE"], self.of["{more}"]

    @property
    def layers(self) -> bool:
        """Both layers take some of it."""
        return self.of["self.first(x)"] > 0.0 and self.of["self.last(x)"] > 0.0


def seen(tmp_path: Path, right: Callable[[Shares], bool], made: str, more: str = "pass") -> None:
    """In one of three runs, this is right."""
    found = []
    for run in RUNS:
        (tmp_path / run).mkdir()
        found.append(Shares(counted(tmp_path / run, SCRIPT.format(made=made, more=more))))
        if right(found[-1]):
            return
    pytest.fail(str([(x.of, x.other) for x in found]))


@pytest.mark.parametrize(
    "made",
    ["sum(x[k // 8, k % 8 : k % 8 + 1] for k in range(60)) + x", "x.repeat(1_000, 1)[:8]"],
)
def test_lines_with_a_long_backward_have_most_of_it(made: str, tmp_path: Path) -> None:
    seen(tmp_path, lambda x: x.here > 0.5 and x.layers and x.other < 0.2, made)


@pytest.mark.parametrize(
    ("made", "more"),
    [
        ("x.clone().mul_(x)", "loss += torch.autograd.grad(loss, net.first.weight,"
         " create_graph=True)[0].square().sum()"),
        ("x.sin()", "torch.autograd.backward(loss, retain_graph=True)"),
    ],
)  # fmt: skip
def test_graphs_of_all_kinds_are_followed(made: str, more: str, tmp_path: Path) -> None:
    seen(tmp_path, lambda x: x.here > 0.0 and x.layers and x.other < 0.2, made, more)


def test_gradients_of_gradients_belong_to_the_line_that_asked_for_them(tmp_path: Path) -> None:
    more = "loss = torch.autograd.grad(loss, net.first.weight, create_graph=True)[0].norm()"
    seen(tmp_path, lambda x: x.more > 0.3 and x.other < 0.2, "x.sin().exp()", more)


@pytest.mark.parametrize(
    ("made", "more"),
    [
        ("Twice.apply(x)", "pass"),
        ("x + Twice.apply(x.sin()) + self.last(x)", "pass"),
        ("F.relu(input=Twice.apply(x))", "pass"),
        ("x", "loss = Twice.apply(loss)"),
    ],
)
def test_nodes_that_no_counted_call_made_are_no_lines(made: str, more: str, tmp_path: Path) -> None:
    seen(tmp_path, lambda x: x.other > 0.5 and x.here < 0.3 and x.layers, made, more)


def test_what_vmap_computes_is_followed_or_left_out(tmp_path: Path) -> None:
    seen(tmp_path, lambda x: x.layers, "torch.vmap(torch.sin)(x)")


@pytest.mark.parametrize("reentrant", [False, True])
def test_nothing_is_said_where_backward_runs_the_forward_again(
    reentrant: bool, tmp_path: Path
) -> None:
    made = f"checkpoint(self.last, x, use_reentrant={reentrant})"
    ops = counted(tmp_path, SCRIPT.format(made=made, more="pass"))
    assert ops.backward_other_ns is None
    assert not ops.measured_backward_ns


def test_what_is_written_into_a_slice_belongs_to_its_line(tmp_path: Path) -> None:
    made = "F.pad(x, (0, 0, 0, 4_000)).clone(); x[3_000:3_001] = x[0] * 2; x = x[:8]"
    seen(tmp_path, lambda x: x.here > 0.5, made)


def test_parts_of_a_call_are_parts_of_its_backward(tmp_path: Path) -> None:
    """Rows that were copied, in a line that also copies them; what records no gradient has none."""

    def right(found: Shares) -> bool:
        line = next(
            x for x in found.ops.lines if x.at.line == LINES["# HERE"] and x.phase == "forward"
        )
        whole, copied = line.backward["elapsed_ns"], line.backward["copied_ns"]
        return 0.3 * whole < copied <= whole and line.backward["frozen_ns"] == 0.0

    seen(tmp_path, right, "F.linear(x.repeat_interleave(64, 0), self.last.weight)[:8]")
