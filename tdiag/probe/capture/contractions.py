"""Broadcast products and differences that are summed right away.

``(x[:, :, None] * w).sum(1)`` is a matrix product, ``(x[:, None] - y).pow(2).sum(-1)`` a matrix of
distances: a single call computes either without writing the large intermediate tensor.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from .frozen_weights import MOST_TRACKED, tensors_in

if TYPE_CHECKING:
    from .lines import LineCalls

PRODUCT, DIFFERENCE = "product", "difference"
SPREADS = {
    "mul": PRODUCT, "__mul__": PRODUCT, "__rmul__": PRODUCT, "multiply": PRODUCT,
    "sub": DIFFERENCE, "__sub__": DIFFERENCE, "__rsub__": DIFFERENCE, "subtract": DIFFERENCE,
}  # fmt: skip
# Calls on a difference before it is summed.
POWERS = {"pow", "__pow__", "square", "abs"}
SUMS = {PRODUCT: {"sum"}, DIFFERENCE: {"sum", "norm", "vector_norm", "linalg_vector_norm"}}
# Elements of a tensor; with fewer, a single call gained little or nothing.
FEWEST = 1 << 16
LARGER = 8  # times its inputs: smaller results come from a bias or a mask, not from all pairs


class Contractions:
    """One per window ``ops``."""

    def __init__(self) -> None:
        # id of a large tensor → weak reference, kind, line, time of the calls so far
        self.spread: dict[int, tuple[Any, str, LineCalls, int]] = {}

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, line: LineCalls, elapsed: int
    ) -> None:
        """A call returned; ``line`` made it."""
        if not isinstance(result, torch.Tensor) or not args:
            return
        before = self.spread.get(id(args[0]))
        known = before is not None and before[0]() is args[0]
        if before is not None and known and name in SUMS[before[1]]:
            if kwargs.get("dim", args[1] if len(args) > 1 else None) is not None:
                before[2].contracted += before[3] + elapsed
                before[2].contraction = before[1]
        elif before is not None and known and name in POWERS and before[1] == DIFFERENCE:
            self._keep(result, DIFFERENCE, before[2], before[3] + elapsed)
        elif name in SPREADS:
            most = max((value.numel() for value in tensors_in(args, kwargs)), default=0)
            if result.numel() >= LARGER * max(most, 1):
                self._keep(result, SPREADS[name], line, elapsed)

    def _keep(self, result: Any, kind: str, line: LineCalls, elapsed: int) -> None:
        if len(self.spread) < MOST_TRACKED and result.numel() >= FEWEST:
            self.spread[id(result)] = weakref.ref(result), kind, line, elapsed
