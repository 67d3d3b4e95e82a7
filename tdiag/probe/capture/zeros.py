"""Products whose operands are mostly zeros: nearly all of a matrix, or whole slices of it.

An adjacency matrix of a graph, or classes as one-hot vectors, written as dense matrices: nearly
all that is multiplied is zero. And tensors of zeros that only a part is written into before all of
them is multiplied.
"""

from __future__ import annotations

from typing import Any

import torch

from ..by_tensor import ByTensor
from .frozen_weights import tensors_in
from .lines import LineCalls
from .operands import CONVOLUTIONS, FEWEST, LONG_NS, MATRIX, in_memory, readable

# Their result is zero until something is written into it; padding has written already.
ZEROS = {"zeros", "new_zeros", "zeros_like", "pad", "constant_pad_nd"}
# Further calls that go through all of a tensor.
WHOLE = {"einsum", "mul", "__mul__", "__rmul__", "conv_transpose1d", "conv_transpose2d"}
# Of its elements. Measured: with 2 % of the elements left, a sparse product took 0.16 to 0.9 of the
# time of a dense one (rules/td739_mostly_zeros.py).
MOST_NONZERO = 0.02
MOST_WRITTEN = 0.5  # half may be one of two parts


class Zeros:
    """One per window ``ops``."""

    def __init__(self) -> None:
        self.made: ByTensor[bool] = ByTensor()  # tensors that were made of zeros

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, line: LineCalls, took: int
    ) -> None:  # fmt: skip
        """A call of this line returned after ``took`` ns."""
        if name in ZEROS:
            if isinstance(result, torch.Tensor) and result.numel() >= FEWEST:
                self.made.keep(result, True)
            return
        if took < LONG_NS or name not in MATRIX | CONVOLUTIONS | WHOLE:
            return
        operands = list(tensors_in(args, kwargs))
        written = min(map(self._written, operands), default=1.0)
        if written <= MOST_WRITTEN:
            line.unwritten += round(took * (1 - written))
        matrices = [x for x in operands if readable(x)] if name in MATRIX else []
        nonzero = min(map(_nonzero, matrices), default=1.0)
        if nonzero <= MOST_NONZERO:
            line.mostly_zero += took
            line.nonzero += round(took * nonzero)

    def _written(self, value: torch.Tensor) -> float:
        """The share of a tensor that its slices with any value but zero span, in all dimensions; 1
        for one that was not made of zeros, or holds nothing else."""
        if value not in self.made or not in_memory(value):
            return 1.0
        used = value != 0
        share = 1.0
        for dim, size in enumerate(value.shape):
            others = [d for d in range(value.dim()) if d != dim]
            share *= int((used.any(dim=others) if others else used).sum()) / max(1, size)
        return share or 1.0


def _nonzero(value: torch.Tensor) -> float:
    """The share of elements that are not zero; 1 for one that learns, which has no fixed zeros, and
    for zeros alone, the first state of a recurrent layer."""
    if value.requires_grad:
        return 1.0
    row = value[(0,) * (value.dim() - 1)]
    if int(row.count_nonzero()) > MOST_NONZERO * row.numel() + 1:
        return 1.0
    return (int(value.count_nonzero()) or value.numel()) / value.numel()
