"""Products whose operands are mostly zeros: nearly all of a matrix, or whole slices of it.

An adjacency matrix of a graph, or classes as one-hot vectors, written as dense matrices: nearly
all that is multiplied is zero. And tensors of zeros that only a part is written into before all of
them is multiplied.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from ..by_tensor import ByTensor
from ..models import plain
from .frozen_weights import tensors_in
from .lines import LineCalls
from .operands import CONVOLUTIONS, FEWEST, LONG_NS, MATRIX, MOST, in_memory, readable

# Their result is zero until something is written into it; padding has written already.
ZEROS = {"zeros", "new_zeros", "zeros_like", "pad", "constant_pad_nd"}
SUMS = MATRIX | {"einsum"}
# Further calls that go through all of a tensor.
WHOLE = {"mul", "__mul__", "__rmul__", "conv_transpose1d", "conv_transpose2d"}
# Of its elements. Measured: with 2 % of the elements left, a sparse product took 0.16 to 0.9 of the
# time of a dense one (rules/td739_mostly_zeros.py).
MOST_NONZERO = 0.02
MOST_WRITTEN = 0.5  # half may be one of two parts
CASTS = {"to", "type", "type_as", "float", "half", "bfloat16", "double"}
MOST_UNREAD, MOST_READ = 256, 8  # operands on a device


class Zeros:
    """One per window ``ops``."""

    def __init__(self) -> None:
        # Tensors that were made of zeros → the lines that made and filled them, and how long, ns.
        self.made: ByTensor[list[tuple[LineCalls, int]]] = ByTensor()
        self.classes: ByTensor[int] = ByTensor()  # one-hot vectors → how many numbers each has
        # On a device: by tensor and line, the operand and what its products took, ns.
        self.unread: dict[tuple[int, int], tuple[weakref.ref[Any], LineCalls, int]] = {}

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, line: LineCalls, took: int
    ) -> None:  # fmt: skip
        """A call of this line returned after ``took`` ns."""
        if name in ZEROS:
            if isinstance(result, torch.Tensor) and result.numel() >= FEWEST:
                self.made.keep(result, [(line, took)])
            return
        if name == "__setitem__" and (made := self.made.get(args[0])):
            made.append((line, took))
            return
        if name == "one_hot":
            self.classes.keep(result, result.shape[-1])
        elif name in CASTS and args and (classes := self.classes.get(args[0])):
            self.classes.keep(result, classes)
        if took < LONG_NS or name not in SUMS | CONVOLUTIONS | WHOLE:
            return
        operands = list(tensors_in(args, kwargs))
        written = min((self._needed(x) for x in operands), default=1.0)
        if written <= MOST_WRITTEN:
            line.unwritten += round(took * (1 - written))
        if name in SUMS:
            _add(line, min(map(self._nonzero, operands), default=1.0), took)
            for value in filter(_on_device, operands):
                self._read_later(value, line, took)

    def settle(self) -> None:
        """Read the operands on a device that still exist, once each. A step would wait for it."""
        if self.unread and not torch.cuda.get_sync_debug_mode():
            shares: dict[int, float] = {}
            for (number, _), (reference, line, took) in self.unread.items():
                value = reference()
                if value is not None and (number in shares or len(shares) < MOST_READ):
                    share = shares.get(number) or shares.setdefault(number, _nonzero(value))
                    _add(line, share, took)
        self.unread.clear()

    def _read_later(self, value: torch.Tensor, line: LineCalls, took: int) -> None:
        key = id(value), id(line)
        reference, _, before = self.unread.get(key, (None, line, 0))
        if reference is None or reference() is not value:
            reference, before = weakref.ref(value), 0
        if key in self.unread or len(self.unread) < MOST_UNREAD:
            self.unread[key] = reference, line, before + took

    def _nonzero(self, value: torch.Tensor) -> float:
        if classes := self.classes.get(value):
            return 1 / classes
        return _nonzero(value) if readable(value) else 1.0

    def _needed(self, value: torch.Tensor) -> float:
        """The share of it that is written. What it took to make and to fill the rest is counted at
        its first product: its gradient is as large."""
        written, made = self._written(value), self.made.get(value)
        if made and written <= MOST_WRITTEN:
            for line, took in made:
                line.unwritten += round(took * (1 - written))
            made.clear()
        return written

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


def _on_device(value: torch.Tensor) -> bool:
    on_device = value.device.type == "cuda" and value.layout is torch.strided
    large = value.is_floating_point() and value.dim() > 1 and value.numel() >= FEWEST
    learns = value.requires_grad and value.is_leaf
    return on_device and large and plain(value) and not learns


def _add(line: LineCalls, nonzero: float, took: int) -> None:
    if nonzero <= MOST_NONZERO:
        line.mostly_zero += took
        line.nonzero += round(took * nonzero)


def _nonzero(value: torch.Tensor) -> float:
    """The share of elements that are not zero; 1 for one that learns, which has no fixed zeros, and
    for zeros alone, the first state of a recurrent layer. What is computed of weights may have
    them: a gate's choice of experts. Of a large one some rows tell."""
    if value.requires_grad and value.is_leaf:
        return 1.0
    row = value[(0,) * (value.dim() - 1)]
    if int(row.count_nonzero()) > MOST_NONZERO * row.numel() + 1:
        return 1.0
    some = value[..., :: math.ceil(value.numel() / MOST), :]
    return (int(some.count_nonzero()) or some.numel()) / some.numel()
