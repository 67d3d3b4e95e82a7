"""A matrix of weights picked for each row, against products with all of them, or by group."""

from __future__ import annotations

from typing import Any

import torch

from constants import Figures, measures, times_as_fast
from constants.contracted import with_backward

KINDS, WIDTHS = (4, 8, 16, 64), (16, 32, 64)
ROWS = 8192
USES = (1, 8)  # how often a row is used, each time with another matrix


def picked(rows: Any, weights: Any, kind: Any, source: Any) -> Any:
    return torch.bmm(rows[source, None], weights[kind])[:, 0]


def from_all(rows: Any, weights: Any, kind: Any, source: Any) -> Any:
    return (rows @ weights)[kind, source]


def in_groups(rows: Any, weights: Any, kind: Any, source: Any) -> Any:
    order, counts = kind.argsort(), kind.bincount(minlength=len(weights)).tolist()
    parts = zip(rows[source[order]].split(counts), weights, strict=True)
    return torch.cat([part @ weight for part, weight in parts])[order.argsort()]


@measures(td745_weights_gathered__FASTER_LOW="least",
          td745_weights_gathered__FASTER_HIGH="most")  # fmt: skip
def gathered() -> Figures:
    """The faster of the two ways."""
    figures = {}
    for kinds in KINDS:
        for width in WIDTHS:
            for uses in USES:
                inputs = (torch.randn(ROWS // uses, width), torch.randn(kinds, width, width))
                index = torch.randint(0, kinds, (ROWS,)), torch.randint(0, ROWS // uses, (ROWS,))

                def ways(work: Any, inputs: Any = inputs, index: Any = index) -> Any:
                    copies = [value.clone() for value in inputs]
                    return with_backward(lambda *given: work(*given, *index), *copies)

                figures[f"{kinds} of {width}, used {uses} times"] = max(
                    times_as_fast(ways(picked), ways(other)) for other in (from_all, in_groups)
                )
    return figures
