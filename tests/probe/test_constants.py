"""What the probe takes for a constant that is computed again in each step."""

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
        self.register_buffer("near", torch.rand(64, 64))
        self.scale = torch.rand(64, 64)
        self.body = nn.Linear(64, 64)
    def forward(self, x, step):
        y = {made}
        return self.body(x) + y[:1]
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = torch.randn(4096, 64)
for step in range(100_000):
    first = step % 500
    x = data[first : first + 8]
    loss = net(x, step).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
"""


def check(folder: Path, made: str, after: str = "pass", *, least: float, most: float) -> None:
    """The share of constants in the time of the calls at the line of ``made``."""
    script = SCRIPT.format(made=made, after=after)
    check_share(folder, script, 11, lambda x: x.constant_ns, least, most)


@pytest.mark.parametrize(
    "made",
    [
        "self.near @ self.near",
        "self.scale @ self.scale",
        "self.near @ self.near.T",
        "torch.fft.fft(self.near).real @ self.near",
        "torch.ones(64, 64).tril().log()",
        "torch.sin(torch.arange(64) / 10000.0 * self.near)",
    ],
)
def test_what_depends_on_constants_alone(tmp_path: Path, made: str) -> None:
    check(tmp_path, made, least=0.5, most=1.0)


@pytest.mark.parametrize(
    "made",
    [
        "x @ self.near",
        "self.body.weight @ self.near",
        "torch.rand(64, 64) @ self.near",
        "self.near * step",
        "self.near[step % 60 :]",
        "torch.zeros(8, 64).index_copy_(0, torch.arange(8), x)",
    ],
)
def test_what_depends_on_the_batch_the_step_or_chance(tmp_path: Path, made: str) -> None:
    check(tmp_path, made, least=0.0, most=0.5)


def test_a_buffer_that_changes_is_no_constant(tmp_path: Path) -> None:
    check(tmp_path, "self.near @ self.near", "net.near.mul_(0.99)", least=0.0, most=0.0)
