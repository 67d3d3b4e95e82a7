"""Buffers that are joined with new rows and cut off, against rings that are written into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from constants import Figures, interleaved, measures

# Rows of the buffer, numbers of a row, new rows: memories of agents, queues of keys.
BUFFERS = (
    (60_000, 70, 16), (60_000, 8, 16), (10_000, 64, 1), (65_536, 128, 256), (4_096, 128, 64),
    (100_000, 4, 1), (16_384, 256, 256),
)  # fmt: skip


def joined(buffer: torch.Tensor, rows: torch.Tensor) -> Callable[[], Any]:
    kept = [buffer]

    def work() -> None:
        kept[0] = torch.cat([kept[0], rows])[-len(buffer) :]

    return work


def written(buffer: torch.Tensor, rows: torch.Tensor) -> Callable[[], Any]:
    at, new = [0], torch.arange(len(rows))

    def work() -> None:
        buffer[(at[0] + new) % len(buffer)] = rows
        at[0] += len(rows)

    return work


@measures(td756_copied_to_change_a_part__SAVED_LOW_FRAC="least")
def buffers() -> Figures:
    """What the ring saves, in times of the time of copying what was there."""
    figures = {}
    for number, width, new in BUFFERS:
        rows = torch.randn(new, width)
        before, after = interleaved(
            joined(torch.randn(number, width), rows), written(torch.randn(number, width), rows)
        )
        figures[f"{new} rows to {number} x {width}"] = (
            (1 - after / before) * (number + new) / number
        )
    return figures
