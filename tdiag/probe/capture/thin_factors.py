"""Covariances of a few factors and a diagonal that are written out and factored as a whole.

``F @ F.mT + D`` with few columns in F and a diagonal D can be inverted through a matrix as small as
the number of columns (Woodbury), its determinant as well.
"""

from __future__ import annotations

from typing import Any

import torch

from ..by_tensor import ByTensor
from ..models import plain
from .factored import FACTORS, PRODUCTS, is_product_with_itself
from .lines import LineCalls
from .operands import MOST

SUMS = {"add", "__add__", "__radd__", "__iadd__", "add_"}
SOLVES = FACTORS | {
    "linalg_inv", "inverse", "linalg_solve", "solve", "logdet", "slogdet", "linalg_slogdet",
}  # fmt: skip
# What uses a factor of it.
_USES = {"linalg_solve_triangular", "cholesky_solve", "cholesky_inverse", "triangular_solve"}
MOST_COLUMNS_FRAC = 0.25  # of the rows: as many as were measured (rules/td757)


class ThinFactors:
    """One per window ``ops``. ``products``: rank of each, and what made it and took how long, ns,
    until it is solved with first; ``sums``: of these and a diagonal; ``factors``: rank of a factor
    of such a sum."""

    def __init__(self) -> None:
        self.products: ByTensor[tuple[int, list[tuple[LineCalls, int]]]] = ByTensor()
        self.sums: ByTensor[tuple[int, list[tuple[LineCalls, int]]]] = ByTensor()
        self.factors: ByTensor[int] = ByTensor()

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, line: LineCalls, took: int
    ) -> None:  # fmt: skip
        """A call of this line returned after ``took`` ns."""
        if name in PRODUCTS and len(args) == 2:
            if is_product_with_itself(*args):
                rows, columns = args[0].shape[-2:]
                if columns <= MOST_COLUMNS_FRAC * rows:
                    self.products.keep(result, (columns, [(line, took)]))
        elif name in SUMS and len(args) == 2:
            for one, other in (args, args[::-1]):
                if (known := self.products.get(one)) and _is_diagonal(other, one):
                    self.sums.keep(result, (known[0], [*known[1], (line, took)]))
        elif name in SOLVES:
            value = args[0] if args else kwargs.get("input", kwargs.get("A"))
            if known := self.sums.get_or_base(value):
                rank, made = known
                self._count(line, took, rank, value)
                for each, ns in made:
                    each.final.thin += ns
                made.clear()
                for part in result if isinstance(result, tuple) else (result,):
                    if isinstance(part, torch.Tensor):
                        self.factors.keep(part, rank)
        elif name in _USES:
            for value in args[:2]:
                if (of := self.factors.get_or_base(value)) is not None:
                    self._count(line, took, of, value)

    def _count(self, line: LineCalls, took: int, rank: int, value: torch.Tensor) -> None:
        line.thin += took
        if rank > line.thin_rank:
            line.thin_rank, line.thin_rows = rank, value.shape[-1]


def _is_diagonal(value: Any, like: torch.Tensor) -> bool:
    """Whether it is a matrix, or a batch of them, as large, with nothing beside the diagonal."""
    if not isinstance(value, torch.Tensor) or value.shape[-2:] != like.shape[-2:]:
        return False
    if value.device.type != "cpu" or value.numel() > MOST or not plain(value):
        return False
    value = value.detach()
    return bool(value.count_nonzero() == value.diagonal(dim1=-2, dim2=-1).count_nonzero() > 0)
