"""Sequences that a model is given again with more at their end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.torch_ops import Ops

from .counted import count

SCRIPT = """
import torch
from torch import nn
table = torch.randint(0, 50, (4, 30))  # as of positions
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.values = nn.Embedding(50, 64), nn.Linear(3, 64)
        self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 50)
    def forward(self, x):
        return self.head(self.body(self.tokens(x) if x.dtype == torch.long else self.values(x)))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
@torch.no_grad()
def rollout():
    ids = torch.randint(0, 50, (4, 20))
    {before}
    for new in range(10):
        scores = net({given})[:, -1]  # HERE
        {after}
for step in range(100_000):
    rollout()
    loss = net(torch.randint(0, 50, (4, 20))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
JOIN = "ids = torch.cat([ids, scores.argmax(1, keepdim=True)], dim=1)"
SLICES = "whole = torch.zeros(4, 40, dtype=torch.long); whole[:, :20] = ids"


def prefixes(folder: Path, **parts: str) -> tuple[list[tuple[float, float, float]], float]:
    """(calls, positions, new ones) of the line that calls the model, and the share of the time of
    all calls that was computed again."""
    script = SCRIPT.format(**parts)
    (here,) = (n for n, line in enumerate(script.splitlines(), 1) if "# HERE" in line)
    run = count(folder, script)
    assert run.returncode == 0 and run.of("failure") == []
    ops = run.evidence().get(Ops)
    assert ops is not None
    again = sum(x.prefix_ns for x in ops.lines) / sum(x.elapsed_ns for x in ops.lines)
    assert all(x.at is not None and x.at.line == here for x in ops.prefixes)
    return [(x.calls, x.positions, x.new) for x in ops.prefixes], again


@pytest.mark.parametrize(
    ("parts", "calls"),
    [
        # It has to grow three times; and before it is joined or cut nobody follows it, so then the
        # second call is the first known.
        ({"before": "", "given": "ids", "after": JOIN}, 6),
        ({"before": "", "given": "ids[:, -30:]", "after": JOIN}, 7),
        ({"before": SLICES, "given": "whole[:, : 20 + new]", "after": "whole[:, 20 + new] = 1"}, 7),
        ({"before": "x = torch.randn(4, 20, 3)", "given": "x",
          "after": "x = torch.cat([x, x[:, -1:]], dim=1)"}, 6),
        ({"before": "made = [ids[:, 0]]", "given": "torch.stack(made, 1)",
          "after": "made.append(scores.argmax(1))"}, 7),
    ],
)  # fmt: skip
def test_a_sequence_that_grows(tmp_path: Path, parts: dict[str, str], calls: int) -> None:
    found, again = prefixes(tmp_path, **parts)
    assert [x[0] for x in found] == [calls]
    _, positions, new = found[0]
    assert 0 < new < positions / 3
    assert again > 0.3


@pytest.mark.parametrize(
    "parts",
    [
        {"before": "", "given": "ids[:, -1:]", "after": JOIN},  # a cache
        {"before": "", "given": "ids[:, new : new + 8]", "after": "pass"},  # a window that moves
        {"before": "", "given": "ids", "after": "ids = torch.cat([ids, ids])"},  # a larger batch
        {"before": "", "given": "table[:, : 20 + 7 * new % 5]", "after": "pass"},
        {"before": "", "given": "ids.clone()", "after": "pass"},
    ],
)
def test_what_does_not_grow(tmp_path: Path, parts: dict[str, str]) -> None:
    assert prefixes(tmp_path, **parts) == ([], 0.0)


GENERATES = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
    def forward(self, x):
        rows = x.unsqueeze(1)
        for _ in range(8):
            y = rows
            for layer in self.layers:
                y = layer(y)  # HERE
            rows = torch.cat([rows, y[:, -1:]], 1)
        return rows
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(3_000):
    net(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_model_that_predicts_within_its_forward(tmp_path: Path) -> None:
    """The line is that of its own loop, and a position is a row, however wide."""
    here = next(n for n, x in enumerate(GENERATES.splitlines(), 1) if "# HERE" in x)
    run = count(tmp_path, GENERATES)
    ops = run.evidence().get(Ops)
    assert ops is not None
    (found,) = ops.prefixes
    assert found.at is not None and found.at.line == here
    # Four sequences of 5 to 8 rows: before, they have not grown often enough.
    assert found.positions == 4 * (5 + 6 + 7 + 8)
    assert found.new == 4 * 4
