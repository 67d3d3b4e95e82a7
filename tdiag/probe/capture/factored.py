"""Products of a triangular matrix and its transpose that are factored again.

Cholesky's factor of ``L @ L.mT`` is L, up to the signs of its columns. A covariance that is passed
to ``torch.distributions.MultivariateNormal`` is factored there, and once more to check it.
"""

from __future__ import annotations

from typing import Any

import torch

from ..by_tensor import ByTensor
from .lines import LineCalls
from .operands import readable

PRODUCTS = {"matmul", "__matmul__", "mm", "bmm"}
FACTORS = {"linalg_cholesky", "linalg_cholesky_ex", "cholesky"}


class FactoredAgain:
    """One per window ``ops``. ``products``: what made each, until it is factored first."""

    def __init__(self) -> None:
        self.products: ByTensor[list[tuple[LineCalls, int]]] = ByTensor()

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, line: LineCalls, took: int
    ) -> None:  # fmt: skip
        """A call of this line returned after ``took`` ns."""
        if name in PRODUCTS and len(args) == 2:
            if is_product_with_itself(*args) and _is_lower(args[0]):
                self.products.keep(result, [(line, took)])
        elif name in FACTORS:
            given = args[0] if args else kwargs.get("input")
            made = self.products.get_or_base(given)
            if made is not None:
                line.factored += took
                for each, ns in made:
                    each.final.multiplied_out += ns
                made.clear()


def is_product_with_itself(one: Any, other: Any) -> bool:
    """Whether these are a matrix, or a batch of them, and its transpose: views of one memory."""
    return (
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and one.dim() == other.dim() >= 2
        and one.shape == (*other.shape[:-2], other.shape[-1], other.shape[-2])
        and one.shape[-2] > 1
        and one.data_ptr() == other.data_ptr()
        and one.stride() == (*other.stride()[:-2], other.stride(-1), other.stride(-2))
    )


def _is_lower(value: torch.Tensor) -> bool:
    square = value.shape[-1] == value.shape[-2]
    return square and readable(value) and not value.detach().triu(1).any()
