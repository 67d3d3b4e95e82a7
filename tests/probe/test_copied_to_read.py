"""Which copies the probe takes for such as are only read."""

from __future__ import annotations

from pathlib import Path

import pytest

from .counted import check_share

SCRIPT = """
import copy
import dataclasses
import torch
from torch import nn
torch.set_num_threads(1)
@dataclasses.dataclass
class Item:
    table: torch.Tensor
    rows: torch.Tensor
net = nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
table, rows = torch.randn(20_000, 64), torch.arange(100)
weight = nn.Parameter(torch.randn(20_000, 64))
item, kept, array = Item(table, rows), [], torch.randn(20_000, 64).numpy()
shared = torch.randn(20_000, 64).share_memory_()
for step in range(100_000):
    x = torch.randn(100, 64)
    {made}  # HERE
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    {after}
    optimizer.step()
"""
HERE = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "# HERE" in line)


@pytest.mark.parametrize(
    ("made", "after", "least", "most"),
    [
        ("x = x + table.clone()[rows]", "", 0.8, 1.0),
        ("x = x + table.clone().detach().view(-1, 64)[rows]", "", 0.8, 1.0),
        ("x = x + copy.deepcopy(table)[rows]", "", 0.8, 1.0),
        ("x = x + dataclasses.asdict(item)['table'][rows]", "", 0.8, 1.0),
        ("x = x + copy.deepcopy([table])[0][rows]", "", 0.8, 1.0),
        ("t = table.clone(); x = x + t[rows]", "table = table * 1; del t", 0.4, 1.0),
        ("x = x + (table * 2).clone()[rows]", "", 0.2, 0.9),
        # The copy is changed, or what was copied is, while the copy is needed.
        ("t = table.clone(); t[rows] += 1; x = x + t[rows]; del t", "", 0.0, 0.0),
        ("t = table.clone(); t.view(-1).mul_(2); x = x + t[rows]; del t", "", 0.0, 0.0),
        ("t = table.clone(); t.numpy()[:] = 1; x = x + t[rows]; del t", "", 0.0, 0.0),
        ("t = table.clone(); x = x + t[rows]", "table[rows] = 1.5; del t", 0.0, 0.0),
        ("t = table.clone().detach(); x = x + t[rows]", "table.mul_(0.5); del t", 0.0, 0.0),
        ("kept.append(table.clone()); kept = kept[-3:]", "table += 1", 0.0, 0.0),
        ("kept.append(weight.data.clone()); kept = kept[-1:]", "weight.data += 1", 0.0, 0.0),
        ("x = x + weight.clone()[rows]", "", 0.0, 0.0),  # the copy records gradients
        # NumPy writes into it.
        ("t = torch.from_numpy(array).clone(); x = x + t[rows]", "array += 1; del t", 0.0, 0.0),
        ("t = shared.clone(); x = x + t[rows]; del t", "", 0.0, 0.0),  # so may another process
        ("x = x + torch.clone(input=table)[rows]", "", 0.0, 0.0),  # how it is called is not known
    ],
)
def test_copies(made: str, after: str, least: float, most: float, tmp_path: Path) -> None:
    script = SCRIPT.format(made=made, after=after)
    check_share(tmp_path, script, HERE, lambda x: x.copied_to_read_ns, least, most)
