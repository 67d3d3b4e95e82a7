"""Sums of squares of parameters in the loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from .counted import check_share

SCRIPT = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(64, 400), nn.ReLU(), nn.Linear(400, 64))
scale = nn.Parameter(torch.ones(64))
optimizer = torch.optim.SGD([*net.parameters(), scale], lr=1e-4)
def penalty():
    return {penalty}
for step in range(100_000):
    x = torch.randn(8, 64)
    loss = (net(x) * scale - x).square().mean()
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SQUARES = "sum(p.pow(2).sum() for p in net.parameters())"


@pytest.mark.parametrize(
    "penalty",
    [
        SQUARES,
        "sum((p * p).sum() for p in net.parameters()) / 2",
        "sum(p.norm() ** 2 for p in net.parameters())",
        "sum(torch.linalg.vector_norm(p).square() for p in net.parameters())",
        "torch.cat([p.view(-1) for p in net.parameters()]).pow(2).sum()",
        "torch.stack([torch.square(p).sum() for p in net.parameters()]).sum()",
    ],
)
def test_squares_that_are_added_to_the_loss(penalty: str, tmp_path: Path) -> None:
    script = SCRIPT.format(penalty=penalty, loss="loss + 0.01 * penalty()")
    check_share(tmp_path, script, 8, lambda x: x.penalty_ns, least=0.8)


@pytest.mark.parametrize(
    ("penalty", "loss"),
    [
        ("sum(p.abs().sum() for p in net.parameters())", "loss + 0.01 * penalty()"),  # sparsity
        ("sum(p.norm() for p in net.parameters())", "loss + 0.01 * penalty()"),
        ("torch.linalg.norm(net[0].weight, 2) ** 2", "loss + 0.01 * penalty()"),
        ("sum(p.sum() ** 2 for p in net.parameters())", "loss + 0.01 * penalty()"),
        ("(net[0].bias + net[0].weight[:, 0]).pow(2).sum()", "loss + 0.01 * penalty()"),
        ("net[0].weight.pow(2).sum() * scale.pow(2).sum()", "loss + 0.01 * penalty()"),
        ("(net(x).pow(2) * scale).sum()", "loss + 0.01 * penalty()"),  # of the batch
        ("scale / scale.norm()", "loss + (x * penalty()).mean()"),  # a normalised weight
        (SQUARES, "loss if penalty().item() else loss"),  # only looked at
    ],
)
def test_what_is_no_weight_decay(penalty: str, loss: str, tmp_path: Path) -> None:
    script = SCRIPT.format(penalty=penalty, loss=loss)
    check_share(tmp_path, script, 8, lambda x: x.penalty_ns, most=0.0)
