"""Rows that brackets pick by a tensor of numbers, with gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from .counted import check_share

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
numbers = torch.randint(0, 64, (500,))
mask = torch.rand(64) < 0.5
for step in range(100_000):
    batch = torch.randn(64, 64)
    x = net(batch)
    picked = {picked}
    loss = picked.square().mean() + x.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("picked", ["x[numbers]", "x[:, numbers]", "x[..., numbers.view(2, 250)]"])
def test_index_select_could_pick_them(picked: str, tmp_path: Path) -> None:
    script = SCRIPT.format(picked=picked)
    check_share(tmp_path, script, 12, lambda x: x.indexed_ns, least=0.9)


@pytest.mark.parametrize(
    "picked",
    [
        "x.index_select(0, numbers)",
        "batch[numbers]",  # without gradients
        "x[numbers, numbers]",  # single elements
        "x[5:][numbers.min()]",  # one row; the largest number may be beyond it
        "x[mask]",
        "x[:32, numbers]",
    ],
)
def test_what_is_something_else(picked: str, tmp_path: Path) -> None:
    script = SCRIPT.format(picked=picked)
    check_share(tmp_path, script, 12, lambda x: x.indexed_ns, most=0.0)
