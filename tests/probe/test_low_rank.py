"""Low-rank products of parameters that are written out."""

from __future__ import annotations

from pathlib import Path

import pytest

from .counted import at_line

SCRIPT = """
import torch
from torch import nn
F = nn.functional
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(512, 512).requires_grad_(False)
        self.A, self.B = nn.Parameter(torch.randn(8, 512)), nn.Parameter(torch.randn(512, 8))
        self.wide = nn.Parameter(torch.randn(512, 256))
    def forward(self, x):
        return {made}  # HERE
net = Net()
optimizer = torch.optim.SGD([net.A, net.B, net.wide], lr=0.01)
for step in range(100_000):
    loss = net(torch.randn(64, 512)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
HERE = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "# HERE" in line)


@pytest.mark.parametrize(
    ("made", "written_out"),
    [
        ("F.linear(x, self.base.weight + (self.B @ self.A) * 2.0)", True),
        ("x @ (self.base.weight + torch.mm(self.B, self.A)).T", True),
        ("x @ (self.A.T @ self.B.t())", True),
        ("self.base(x) + (x @ self.A.T) @ self.B.T", False),
        ("F.linear(x, self.wide @ self.wide.T)", False),  # of no low rank
        ("x + (self.B @ self.A).mean()", False),  # no weight
    ],
)
def test_products_that_are_weights(made: str, written_out: bool, tmp_path: Path) -> None:
    lines = at_line(tmp_path, SCRIPT.format(made=made), HERE)
    making = sum(x.low_rank_ns for x in lines)
    using = sum(x.low_rank_used_ns for x in lines)
    assert (making > 0, using > 0) == (written_out, written_out)
    assert making + using <= sum(x.elapsed_ns for x in lines)
