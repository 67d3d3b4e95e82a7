"""What the large operands of products and convolutions hold: nearly only zeros, or the same rows
several times.

An adjacency matrix of a graph, or classes as one-hot vectors, written as dense matrices: nearly
all that is multiplied is zero. Rows that ``repeat``, ``expand`` or an index has copied: a layer
computes each copy again. Rows count as copied if all of them are, in groups of one size: side by
side, or one sequence of rows after another. Only values in the memory of the CPU are read.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..models import plain
from .frozen_weights import tensors_in
from .lines import LineCalls

MATRIX = {"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm"}
CONVOLUTIONS = {"conv1d", "conv2d", "conv3d"}
COPIES = {"repeat", "repeat_interleave", "expand", "expand_as", "tile", "broadcast_to"}
PICKS = {"__getitem__", "index_select"}  # copy rows if the index names them more than once
# Shorter calls may be fixed cost, which fewer numbers do not save (fixed_cost.NO_OVERHEAD_NS).
LONG_NS = 100_000
FEWEST = 1 << 14  # elements of an operand
# Of its elements. Measured: with 2 % of the elements left, a sparse product took 0.16 to 0.9 of the
# time of a dense one (rules/td739_mostly_zeros.py).
MOST_NONZERO = 0.02
MOST_PLACES = 64


class Operands:
    """One per window ``ops``. ``copied``: for each line that copies rows, or that computes with
    copies of unknown origin, ns of computing copies again, and the largest number of copies."""

    def __init__(self) -> None:
        self.copies: dict[int, Any] = {}  # number of rows → place of the last copy with as many
        self.copied: dict[Any, list[int]] = {}

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, at: Any, line: LineCalls, took: int
    ) -> None:  # fmt: skip
        """A call of this line returned after ``took`` ns."""
        if name in COPIES | PICKS:
            self._copied(result, at, sure=name in COPIES)
            return
        if took < LONG_NS or name not in MATRIX | CONVOLUTIONS:
            return
        first = args[0] if args else kwargs.get("input")
        if name in MATRIX:
            left = [_nonzero(x) for x in tensors_in(args, kwargs) if _readable(x) and x.dim() > 1]
            least = min(left, default=1.0)
            if least <= MOST_NONZERO:
                line.mostly_zero += took
                line.nonzero += round(took * least)
        if _readable(first) and name != "bmm" and (copies := _copies(first, name)) > 1:
            again = round(took * (1 - 1 / copies))
            line.copied += again
            place = self.copies.get(_rows(first) if name in MATRIX else len(first), at)
            if place in self.copied or len(self.copied) < MOST_PLACES:
                sums = self.copied.setdefault(place, [0, 0])
                sums[0] += again
                sums[1] = max(sums[1], copies)

    def _copied(self, result: Any, at: Any, sure: bool) -> None:
        if isinstance(result, torch.Tensor) and result.dim() > 1:
            for number in {len(result), _rows(result)}:
                if sure or number not in self.copies:
                    self.copies[number] = at

    def report(self) -> dict[str, Any]:
        """The field `copied` of the `ops` record."""
        return {"copied": [[at, *sums] for at, sums in self.copied.items()]}


def _rows(value: torch.Tensor) -> int:
    return value.numel() // max(1, value.shape[-1])


def _readable(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and plain(value)
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.numel() >= FEWEST
    )


def _nonzero(value: torch.Tensor) -> float:
    """The share of elements that are not zero; 1 for one that learns, which has no fixed zeros."""
    if value.requires_grad:
        return 1.0
    row = value[(0,) * (value.dim() - 1)]
    if int(row.count_nonzero()) > MOST_NONZERO * row.numel() + 1:
        return 1.0
    return int(value.count_nonzero()) / value.numel()


def _copies(value: torch.Tensor, name: str) -> int:
    """How often each row occurs; of a convolution each image is a row."""
    spread = math.prod(n for n, step in zip(value.shape, value.stride(), strict=True) if not step)
    if spread > 1:
        return spread
    if not value.is_contiguous():
        return 1
    rows = value.flatten(1) if name in CONVOLUTIONS else value.flatten(0, -2)
    number = len(rows)
    same = rows[:, 0] == rows[0, 0]
    if number < 2 or int(same.sum()) < 2:
        return 1
    beside = number if bool(same.all()) else int((~same).to(torch.uint8).argmax())
    if beside > 1 and number % beside == 0:
        groups = rows.view(-1, beside, rows.shape[1])
        if bool((groups == groups[:, :1]).all()):
            return beside
    period = 1 + int(same[1:].to(torch.uint8).argmax())
    if period > 1 and number % period == 0:
        groups = rows.view(-1, period, rows.shape[1])
        if bool((groups == groups[:1]).all()):
            return number // period
    return 1
