"""Experts that compute only the rows that a gate leaves, against all rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from constants import Figures, interleaved, measures

SIZES = ((64, 128), (64, 256), (128, 256))  # features, hidden ones
ROWS, SHARES = (256, 512), (1 / 8, 1 / 4, 1 / 2)


def all_rows(expert: nn.Module, x: torch.Tensor, gate: torch.Tensor) -> None:
    (expert(x) * gate).sum().backward()


def chosen_rows(expert: nn.Module, x: torch.Tensor, gate: torch.Tensor) -> None:
    rows = gate[:, 0].nonzero()[:, 0]
    torch.zeros_like(x).index_add(0, rows, expert(x[rows]) * gate[rows]).sum().backward()


@measures(td728_results_thrown_away__CHOOSING_NS="most")
def chosen() -> Figures:
    """What choosing takes beyond the rows' share of the time of all, ns."""
    figures = {}
    for features, hidden in SIZES:
        for rows in ROWS:
            for share in SHARES:
                expert: Any = nn.Sequential(
                    nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, features)
                )
                x = torch.randn(rows, features, requires_grad=True)
                gate = (torch.rand(rows, 1) < share).float() * torch.rand(rows, 1)
                given = expert, x, gate
                whole, part = interleaved(
                    lambda g=given: all_rows(*g), lambda g=given: chosen_rows(*g)
                )
                left = float((gate > 0).float().mean())
                figures[f"{rows} rows of {features}, {share:.3f}"] = part - left * whole
    return figures
