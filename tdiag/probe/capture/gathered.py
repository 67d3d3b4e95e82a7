"""Matrices of weights that are picked for each row, and multiplied with it.

``torch.bmm(x[:, None], weights[kind])`` copies a matrix for each row, and backward adds a gradient
as large up again. Rows of the same kind could be multiplied with their matrix together.
"""

from __future__ import annotations

from typing import Any

import torch

from ..by_tensor import ByTensor
from .copied_rows import MOST_PLACES, PICKS, picks_rows
from .frozen_weights import tensors_in
from .lines import LineCalls

VIEWS = {
    "view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "transpose", "permute",
    "contiguous", "mT", "__get__",
}  # fmt: skip
PRODUCTS = {"bmm", "baddbmm", "matmul", "__matmul__", "__rmatmul__", "einsum", "mul", "__mul__"}
MANY = 4  # as many copies of each matrix: with fewer, nothing is left to be multiplied together


class GatheredWeights:
    """One per window ``ops``."""

    def __init__(self) -> None:
        # Tensors that were computed from parameters alone.
        self.weights: ByTensor[bool] = ByTensor()
        # Picked matrices → the call that picked them, its place, how many.
        self.picked: ByTensor[tuple[list[tuple[LineCalls, int]], Any, tuple[int, int]]] = ByTensor()
        # Place of a pick → matrices picked by one call, and matrices there.
        self.lines: dict[Any, tuple[int, int]] = {}

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, at: Any, line: LineCalls, took: int
    ) -> None:  # fmt: skip
        """A call of this line, at ``at``, returned after ``took`` ns."""
        if not isinstance(result, torch.Tensor):
            return
        given = list(tensors_in(args, kwargs))
        if name in PICKS:
            if picks_rows(name, args) and given and self._is_weight(given[0]):
                self._picks(given[0], result, at, line, took)
            return
        for value in given:
            found = self._known(value)
            if found is None:
                continue
            calls, place, counts = found
            if name in VIEWS and result.numel() == value.numel():
                self._keep(result, calls, place, counts)
            elif name in PRODUCTS:
                for each, ns in calls:
                    each.final.gathered += ns
                calls.clear()  # picked once, however often it is used
                line.gathered_used += took
                if place in self.lines or len(self.lines) < MOST_PLACES:
                    self.lines[place] = max(self.lines.get(place, (0, 0)), counts)
            return
        if given and all(map(self._is_weight, given)):
            self.weights.keep(result, True)

    def _picks(self, source: Any, result: Any, at: Any, line: LineCalls, took: int) -> None:
        each = max(1, source.numel() // max(1, len(source)))  # numbers of one matrix
        picked = result.numel() // each
        if source.dim() > 2 and result.dim() > 2 and picked >= MANY * len(source):
            self._keep(result, [(line, took)], at, (picked, len(source)))

    def _is_weight(self, value: torch.Tensor) -> bool:
        for tensor in (value, value._base):
            if tensor in self.weights or isinstance(tensor, torch.nn.Parameter):
                return True
        return False

    def _known(self, value: torch.Tensor) -> Any:
        return self.picked.get(value) or self.picked.get(value._base)

    def _keep(self, result: Any, calls: Any, place: Any, counts: tuple[int, int]) -> None:
        self.picked.keep(result, (calls, place, counts))

    def report(self) -> dict[str, Any]:
        """The field `gathered` of the `ops` record."""
        return {"gathered": [[at, *counts] for at, counts in self.lines.items()]}
