"""Rows picked by brackets against ``index_select`` or ``embedding``, with their backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import embedding

from constants import Figures, measures, times_as_fast

# Shape, dimension, how many are picked: words and items of a table, nodes at the ends of edges, all
# pairs of 39 fields, half of the columns.
PICKS = (
    ((30_000, 64), 0, 4_096), ((2_000, 256), 0, 2_048), ((3_000, 64), 0, 30_000),
    ((500, 16), 0, 20_000), ((1_024, 39, 16), 1, 741), ((4_096, 256), 1, 128),
    ((256, 32, 64), 1, 16), ((64, 128, 32), 2, 16),
)  # fmt: skip


def differentiated(pick: Callable[[Any], Any], table: Any, joined: bool) -> Callable[[], None]:
    """``joined``: what is picked is joined with as much by ``torch.cat``, so that its gradient is a
    slice of a larger one."""
    like = torch.ones_like(pick(table))
    gradient = torch.cat([like, like], -1).chunk(2, -1)[1] if joined else like

    def work() -> None:
        table.grad = None
        pick(table).backward(gradient)

    return work


@measures(td749_rows_picked_by_brackets__FASTER="most")
def indexed() -> Figures:
    """With the faster of the two, as the fix says: ``embedding`` where rows are joined."""
    figures = {}
    for shape, dim, count in PICKS:
        index = torch.randint(0, shape[dim], (count,))
        table = torch.randn(shape, requires_grad=True)
        brackets = (*(slice(None) for _ in range(dim)), index)
        for joined in (False, True):
            others = [lambda x, dim=dim, at=index: x.index_select(dim, at)]
            if not dim:
                others.append(lambda x, at=index: embedding(at, x))
            figures[f"{count} of {shape} along {dim}{', joined' * joined}"] = max(
                times_as_fast(
                    differentiated(lambda x, at=brackets: x[at], table, joined),
                    differentiated(other, table, joined),
                )
                for other in others
            )
    return figures
