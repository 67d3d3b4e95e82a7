"""Batches of equal matrices."""

from __future__ import annotations

from pathlib import Path

import pytest

from .counted import check_share

SCRIPT = """
import torch
from torch import nn
torch.set_num_threads(1)
rate = nn.Parameter(torch.zeros(6))
net = nn.Linear(8, 36)
optimizer = torch.optim.SGD([rate, *net.parameters()], lr=1e-4)
A = torch.eye(6) + 0.1 * torch.ones(6, 6).tril(-1)
for step in range(100_000):
    x = torch.randn(32, 8)
    own = net(x).view(32, 6, 6)
    P = torch.diag(rate.exp()).expand({batch}, 6, 6)
    made = {made}  # HERE
    loss = made.square().mean() + own.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
HERE = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "# HERE" in line)


@pytest.mark.parametrize(
    "made",
    ["A @ P @ A.T", "torch.linalg.cholesky(P)", "torch.linalg.solve(P, A @ P)", "P * 2 + A"],
)
def test_one_for_each_sample(made: str, tmp_path: Path) -> None:
    script = SCRIPT.format(batch=32, made=made)
    ops = check_share(tmp_path, script, HERE, lambda x: x.alike_ns, least=0.7)
    (line,) = (x for x in ops.lines if x.at.line == HERE)
    assert line.matrices == 32


@pytest.mark.parametrize(
    ("made", "batch"),
    [
        ("A @ own", 32),  # each sample's own
        ("P + own", 32),
        ("P * 0", 32),  # zeros are equal for other reasons
        ("A @ P @ A.T", 3),  # few
        ("A @ P[0] @ A.T", 32),
    ],
)
def test_different_ones_and_few(made: str, batch: int, tmp_path: Path) -> None:
    script = SCRIPT.format(batch=batch, made=made)
    check_share(tmp_path, script, HERE, lambda x: x.alike_ns, most=0.0)
