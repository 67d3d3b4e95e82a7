"""Which copies the probe takes for those of a buffer that is only changed in part."""

from __future__ import annotations

from pathlib import Path

import pytest

from .counted import check_share

SCRIPT = """
import torch
from torch import nn
torch.set_num_threads(1)
net = nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
queue, rows = torch.randn(20_000, 64), torch.arange(100)
first = second = queue
for step in range(100_000):
    x = torch.randn(100, 64)
    y = net(x)
    {made}  # HERE
    loss = y.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
HERE = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "# HERE" in line)


@pytest.mark.parametrize(
    ("made", "least", "most"),
    [
        ("queue = torch.cat([queue, x])[-20_000:]", 0.8, 1.0),
        ("queue = torch.cat([queue[100:], y.detach()], dim=0)", 0.8, 1.0),
        ("queue = torch.vstack((x, queue)).narrow(0, 0, 20_000)", 0.8, 1.0),
        ("queue = queue.index_copy(0, rows, x)", 0.8, 1.0),
        ("queue = queue.clone(); queue[rows] = x", 0.8, 1.0),
        (
            "t = queue.clone(); t[rows] = y; queue = t.detach(); y = y + t[rows + step % 50]",
            0.6,
            1.0,
        ),
        ("queue = queue.clone(); queue[:] = 1.5 * queue", 0.0, 0.0),  # all is new
        ("queue = queue.clone()", 0.0, 0.0),
        # Each copy is needed for its gradients.
        ("for row in rows: y = y.clone(); y[row] = y[row - 1] * 2", 0.0, 0.0),
        ("for row in rows: y = y.index_fill(0, row, 1.5)", 0.0, 0.0),
        ("for row in rows: y = torch.cat([y[1:], y[:1] * 2])", 0.0, 0.0),
        ("both = torch.cat([queue, x])", 0.0, 0.0),  # the queue stays as it is
        ("first, second = second, torch.cat([first[:100], x])", 0.0, 0.6),
        ("y = torch.cat([y, y * 2]); y = y[:100]", 0.0, 0.0),
    ],
)
def test_buffers_that_are_copied(made: str, least: float, most: float, tmp_path: Path) -> None:
    script = SCRIPT.format(made=made)
    check_share(tmp_path, script, HERE, lambda x: x.copied_on_ns, least, most)
