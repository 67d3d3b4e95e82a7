"""Buffers that are joined with new rows and cut off, against rings that are written into; tables
that are copied to read them."""

from __future__ import annotations

import statistics
import time
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


NET = torch.nn.Sequential(
    torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
    torch.nn.Linear(512, 64),
)  # fmt: skip
ROWS = torch.randint(4_096, (256,))
READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "some rows": lambda table: table[ROWS],
    "all rows": lambda table: table @ NET[0].weight[:8].T,
    "a step on some rows": lambda table: NET(table[ROWS]).sum().backward(),
}
# Rows of the table, numbers of a row.
TABLES = ((20_000, 64), (60_000, 64), (150_000, 64), (300_000, 64))


@measures(
    td758_copied_only_to_read__SAVED_LOW_FRAC="least",
    copying__SAVED_HIGH="most",
)
def tables() -> Figures:
    """What reading the table itself saves, in times of the time of the call that copies it."""
    return {
        f"{what} of {number} x {width}": saved(torch.randn(number, width), read)
        for number, width in TABLES
        for what, read in READS.items()
    }


def saved(table: torch.Tensor, read: Callable[[torch.Tensor], Any], turns: int = 30) -> float:
    copying, both, alone = [], [], []
    for _ in range(turns):
        began = time.process_time()
        read(table)
        alone.append(time.process_time() - began)
        began = time.process_time()
        copy = table.clone()
        copying.append(time.process_time() - began)
        read(copy)
        del copy
        both.append(time.process_time() - began)
    return (statistics.median(both) - statistics.median(alone)) / statistics.median(copying)
