"""Low-rank products of parameters that are written out and then used as a weight.

``x @ (W + A @ B)`` makes a matrix as large as the weight in every step, and its backward computes a
gradient as large for it. ``x @ W + (x @ A) @ B`` needs neither. The product is followed while it is
scaled, transposed and added to another matrix.
"""

from __future__ import annotations

from typing import Any

import torch

from ..by_tensor import ByTensor
from .frozen_weights import tensors_in
from .lines import LineCalls
from .operands import FEWEST

PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "mm", "linear"}
BETWEEN = {
    "mul", "__mul__", "__rmul__", "div", "__truediv__", "add", "__add__", "__radd__", "sub",
    "__sub__", "to", "t", "transpose", "permute", "contiguous", "view", "reshape", "clone",
}  # fmt: skip
SMALLER = 8  # the inner side, compared with both outer ones: then two products cost a quarter


class LowRank:
    """One per window ``ops``. ``made``: the calls that made each product."""

    def __init__(self) -> None:
        self.made: ByTensor[list[tuple[LineCalls, int]]] = ByTensor()

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, line: LineCalls, took: int
    ) -> None:  # fmt: skip
        """A call of this line returned after ``took`` ns."""
        if not isinstance(result, torch.Tensor) or name not in PRODUCTS | BETWEEN:
            return
        given = list(tensors_in(args, kwargs))
        known = [calls for value in given if (calls := self._known(value)) is not None]
        if known and name in BETWEEN:
            self._keep(result, [*known[0], (line, took)])
        elif known:
            for calls in known:
                for each, ns in calls:
                    each.final.low_rank += ns
                calls.clear()  # made once, however often it is used
            line.low_rank_used += took
        elif name in PRODUCTS and len(given) == 2 and all(map(_is_parameter, given)):
            inner = given[0].shape[-1]
            if result.dim() == 2 and SMALLER * inner <= min(result.shape):
                self._keep(result, [(line, took)])

    def _known(self, value: torch.Tensor) -> list[tuple[LineCalls, int]] | None:
        known = self.made.get(value)
        return self.made.get(value._base) if known is None else known

    def _keep(self, result: torch.Tensor, calls: list[tuple[LineCalls, int]]) -> None:
        if result.numel() >= FEWEST:
            self.made.keep(result, calls)


def _is_parameter(value: torch.Tensor) -> bool:
    return isinstance(value, torch.nn.Parameter) or isinstance(value._base, torch.nn.Parameter)
