"""How many layers take one input, by the line that calls them."""

from __future__ import annotations

from pathlib import Path

from tdiag.evidence.torch_ops import Ops

from .harness import watch_code

SCRIPT = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(8, 2) for _ in range(12))
        self.chain = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))
    def forward(self, x):
        for layer in self.chain:
            x = layer(x)
        return torch.cat([head(x) for head in self.heads], 1)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100_000):
    loss = net(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_heads_share_their_input_and_a_chain_does_not(tmp_path: Path) -> None:
    run = watch_code(tmp_path, SCRIPT, windows=["baseline", "ops"], profiling=True, steps=60)
    assert run.returncode == 0 and run.of("failure") == []
    ops = run.evidence().get(Ops)
    assert ops is not None
    by_line = {x.at.line: (x.shared, x.shared_tensors) for x in ops.lines if "linear" in x.names}
    assert by_line == {11: (1, 2), 12: (12, 24)}
    heads = [x for x in ops.lines if x.at.line == 12]
    assert [x.at.function for x in heads] == ["forward"]  # not that of the comprehension
    assert heads[0].names.keys() >= {"linear", "cat"}  # one line: joining them is a part of it


GATES = """
import torch
from torch import nn
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.i, self.f, self.o, self.g = (nn.Linear(8, 8) for _ in range(4))
        self.narrow, self.wide = nn.Linear(8, 2), nn.Linear(2, 8)
    def forward(self, x):
        i = self.i(x).sigmoid()
        f = self.f(x).sigmoid()
        o = self.o(x).sigmoid()
        g = self.g(x).tanh()
        return i * g + f * o + self.wide(self.narrow(o))
net = Cell()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100_000):
    loss = net(torch.randn(4, 3, 8)[:, 0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_gates_on_lines_of_their_own_share_their_input(tmp_path: Path) -> None:
    run = watch_code(tmp_path, GATES, windows=["baseline", "ops"], profiling=True, steps=60)
    ops = run.evidence().get(Ops)
    assert ops is not None
    by_line = {x.at.line: (x.shared, x.shared_tensors) for x in ops.lines if "linear" in x.names}
    assert by_line == {10: (4, 8), 11: (4, 8), 12: (4, 8), 13: (4, 8), 14: (1, 2)}
