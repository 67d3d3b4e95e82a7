"""Matrices of weights that are picked for each row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.torch_ops import Ops

from .counted import count

SCRIPT = """
import torch
kinds = torch.randint(0, 6, (800,))
rows = torch.randn(800, 32)
bases = torch.nn.Parameter(torch.randn(2, 32, 32) / 8)
mixed = torch.nn.Parameter(torch.randn(6, 2))
weights = torch.nn.Parameter(torch.randn(6, 32, 32) / 8)
table = torch.nn.Parameter(torch.randn(6, 32))
fixed = torch.randn(6, 32, 32)
optimizer = torch.optim.SGD([bases, mixed, weights, table], lr=0.01)
for step in range(100_000):
    made = torch.einsum("rb,bio->rio", mixed, bases)
    picked = {picked}  # PICKED
    out = {used}  # USED
    loss = out.square().mean() + sum(p.sum() for p in (bases, mixed, weights, table)) * 0
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def line_of(mark: str) -> int:
    return next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if mark in line)


@pytest.mark.parametrize(
    ("picked", "used", "found"),
    [
        ("weights[kinds]", "torch.bmm(rows[:, None], picked)", True),
        ("made.index_select(0, kinds)", "torch.bmm(rows[:, None], picked)", True),
        ("weights[kinds]", "torch.einsum('ni,nio->no', rows, picked)", True),
        ("weights[kinds].transpose(1, 2)", "(picked @ rows[:, :, None])[:, :, 0]", True),
        ("weights[kinds]", "rows + picked.sum(1)", False),  # no product
        ("weights[kinds[:10]]", "torch.bmm(rows[:10, None], picked)", False),  # few
        ("table[kinds]", "rows * picked", False),  # rows of a table, not matrices
        ("fixed[kinds]", "torch.bmm(rows[:, None], picked) + table[0]", False),  # data
        ("(rows @ weights)", "picked[kinds, torch.arange(800)]", False),  # the fix
    ],
)
def test_matrices_picked_for_each_row(tmp_path: Path, picked: str, used: str, found: bool) -> None:
    script = SCRIPT.format(picked=picked, used=used)
    run = count(tmp_path, script)
    assert run.returncode == 0 and run.of("failure") == [], run.err
    ops = run.evidence().get(Ops)
    assert ops is not None
    expected = [(line_of("# PICKED"), 800, 6)] if found else []
    assert [(x.at and x.at.line, x.picked, x.weights) for x in ops.gathered] == expected
    picking = sum(x.gathered_ns for x in ops.lines if x.at.line == line_of("# PICKED"))
    using = sum(x.gathered_used_ns for x in ops.lines if x.at.line == line_of("# USED"))
    assert (picking > 0, using > 0) == (found, found)
