"""Rows picked by brackets against ``index_select``, with their backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from constants import Figures, measures, times_as_fast

# Shape, dimension, how many are picked: words and items of a table, nodes at the ends of edges, all
# pairs of 39 fields, half of the columns.
PICKS = (
    ((30_000, 64), 0, 4_096), ((2_000, 256), 0, 2_048), ((3_000, 64), 0, 30_000),
    ((500, 16), 0, 20_000), ((1_024, 39, 16), 1, 741), ((4_096, 256), 1, 128),
    ((256, 32, 64), 1, 16), ((64, 128, 32), 2, 16),
)  # fmt: skip


def differentiated(pick: Callable[[Any], Any], table: Any) -> Callable[[], None]:
    gradient = torch.ones_like(pick(table))

    def work() -> None:
        table.grad = None
        pick(table).backward(gradient)

    return work


@measures(td749_rows_picked_by_brackets__FASTER_LOW="least",
          td749_rows_picked_by_brackets__FASTER_HIGH="most")  # fmt: skip
def indexed() -> Figures:
    figures = {}
    for shape, dim, count in PICKS:
        index = torch.randint(0, shape[dim], (count,))
        table = torch.randn(shape, requires_grad=True)
        brackets = (*(slice(None) for _ in range(dim)), index)
        figures[f"{count} of {shape} along {dim}"] = times_as_fast(
            differentiated(lambda x, at=brackets: x[at], table),
            differentiated(lambda x, dim=dim, at=index: x.index_select(dim, at), table),
        )
    return figures
