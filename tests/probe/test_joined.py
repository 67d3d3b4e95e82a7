"""Parameters that one call joins."""

from __future__ import annotations

from pathlib import Path

import pytest

from .counted import at_line

SCRIPT = """
import torch
from torch import nn
class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes = nn.ParameterList(torch.randn(8) for _ in range(40))
        self.head = nn.Linear(8, 3)
    def forward(self, ids):
        return self.head({joined}[ids])
net = Codes()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100_000):
    loss = net(torch.randint(0, 40, (16,))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("joined", "parameters"),
    [
        ("torch.stack(list(self.codes))", 40),
        ("torch.cat([x for x in self.codes]).view(40, 8)", 40),
        ("torch.stack([x * 2 for x in self.codes])", 0),
        ("torch.stack(40 * [self.head.weight[0]])", 0),
    ],
)
def test_parameters_that_one_call_joins(tmp_path: Path, joined: str, parameters: int) -> None:
    lines = at_line(tmp_path, SCRIPT.format(joined=joined), 10)
    assert max(x.joined for x in lines) == parameters
