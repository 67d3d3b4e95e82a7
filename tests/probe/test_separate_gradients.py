"""One output that is differentiated by several calls of torch.autograd.grad."""

from __future__ import annotations

from pathlib import Path

import pytest

from .counted import check_share

SCRIPT = """
import torch
from torch import nn
from torch.autograd import grad
net = nn.Sequential(nn.Linear(2, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 1))
other = nn.Sequential(nn.Linear(1, 200), nn.Tanh(), nn.Linear(200, 1))
optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], lr=1e-4)
ones = torch.ones(256, 1)
for step in range(100_000):
    x, t = (torch.rand(256, 1, requires_grad=True) for _ in range(2))
    u = {u}
    u_x = {first}[0]
    u_t = {later}[0]
    loss = (u_x + u_t).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
JOINED = "net(torch.cat([x, t], 1))"
OF_X, OF_T = "grad(u, x, ones, create_graph=True)", "grad(u, t, ones, create_graph=True)"


@pytest.mark.parametrize(
    ("u", "first", "later", "least", "most"),
    [
        (JOINED, OF_X, OF_T, 0.9, 1.0),
        (JOINED, "grad(u.sum(), x, create_graph=True)", "grad([u.sum()], [t], create_graph=True)",
         0.9, 1.0),
        (JOINED, "[x]", "grad(u, (x, t), ones, create_graph=True)", 0.0, 0.0),
        # A second derivative is of another output.
        (JOINED, OF_X, "grad(u_x, t, ones, create_graph=True)", 0.0, 0.0),
        # The outputs share nothing but the last sum.
        ("other(x) + other(t)", OF_X, OF_T, 0.05, 0.6),
    ],
)  # fmt: skip
def test_later_calls_count_where_they_go_the_same_way(
    u: str, first: str, later: str, least: float, most: float, tmp_path: Path
) -> None:
    script = SCRIPT.format(u=u, first=first, later=later)
    check_share(tmp_path, script, 13, lambda x: x.separate_ns, least, most)
