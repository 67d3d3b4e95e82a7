"""Gradients that a module takes within its forward, as the inner updates of meta-learning do."""

from __future__ import annotations

from pathlib import Path

from tdiag.evidence.torch_ops import Ops

from .counted import count

SCRIPT = """
import torch
from torch import nn
class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16) / 4)
    def forward(self, x, weight=None):
        return x @ (self.weight if weight is None else weight)  # CALLED
class Meta(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Learner()
    def forward(self, x):
        fast = self.net.weight
        for _ in range(3):
            inner = self.net(x, fast).square().mean()  # INNER
            fast = fast - 0.1 * torch.autograd.grad(inner, fast, create_graph=True)[0]  # UPDATE
        return self.net(x, fast)
meta = Meta()
optimizer = torch.optim.SGD(meta.parameters(), lr=0.01)
for step in range(100_000):
    loss = meta(torch.randn(8, 16)).square().mean()  # LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_what_follows_them_is_forward_until_the_module_returns(tmp_path: Path) -> None:
    run = count(tmp_path, SCRIPT)
    assert run.returncode == 0 and run.of("failure") == [], run.err
    ops = run.evidence().get(Ops)
    assert ops is not None
    phases: dict[str, set[str]] = {}
    for line in ops.lines:
        mark = SCRIPT.splitlines()[line.at.line - 1].rpartition("# ")[2]
        phases.setdefault(mark, set()).add(line.phase)
    assert phases["CALLED"] == phases["INNER"] == {"forward"}
    assert phases["UPDATE"] == {"forward", "backward"}
    assert "loss" in phases["LOSS"]
