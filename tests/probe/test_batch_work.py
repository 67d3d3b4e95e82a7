"""What the probe takes for work on the batch alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from .counted import check_share

SCRIPT = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.frozen = nn.Linear(64, 64), nn.Linear(64, 64).requires_grad_(False)
        self.near = torch.rand(64, 64)
        self.smooth = nn.Sequential(nn.Softmax(1), nn.Softmax(1))
        self.mixed = nn.Sequential(nn.Softmax(1), nn.Softmax(1), nn.Softmax(1), nn.Linear(64, 64))
    def forward(self, x):
        h = self.body(x)
        y = {made}
        return h + y.float()[:1]
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = torch.randn(4096, 64)
for step in range(100_000):
    first = step % 500
    x = data[first : first + 8]
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def check(folder: Path, made: str, least: float = 0.0, most: float = 1.0) -> None:
    """The share of this work in the time of the calls at the line of ``made``."""
    check_share(folder, SCRIPT.format(made=made), 13, lambda x: x.of_batch_ns, least, most)


@pytest.mark.parametrize(
    "made",
    [
        "torch.cdist(x, x) @ x",
        "x @ self.near",
        "self.smooth(x)",
        "x[torch.randperm(8)].sort().values.sort().values",
        "x.clone().index_fill_(0, (x.sum(1) > 0).nonzero()[:, 0], 0.0)",
    ],
)
def test_what_depends_on_the_batch_alone(tmp_path: Path, made: str) -> None:
    check(tmp_path, made, least=0.5)


@pytest.mark.parametrize(
    "made",
    [
        "h.detach().sort().values",
        "x.clone().mul_(h.detach()).sort().values.sort().values.sort().values",
        "self.frozen(x).sort().values",
        "x + torch.randn_like(x)",
        "nn.functional.dropout(x).sort().values",
        "self.near @ self.near",
        "x @ self.body.weight.detach()",
        "self.mixed(x)",  # of which no part can be left out
    ],
)
def test_what_does_not(tmp_path: Path, made: str) -> None:
    check(tmp_path, made, most=0.3)
