"""Layers that compute copies of the same rows.

Rows that ``repeat``, ``expand`` or an index has copied: a layer computes each copy again. Rows
count as copied if all of them are, in groups of one size: side by side, or one sequence of rows
after another. What works on each row by itself then gives copies as well. Of functions of single
numbers the result is read: all that they took was copied if that was.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch

from ..by_tensor import ByTensor
from .frozen_weights import tensors_in
from .lines import LineCalls
from .operands import CONVOLUTIONS, LONG_NS, MATRIX, readable

SEQUENCES = {"multi_head_attention_forward", "lstm", "gru", "rnn_tanh", "rnn_relu"}
LAYERS = MATRIX - {"bmm"} | CONVOLUTIONS | SEQUENCES
COPIES = {"repeat", "repeat_interleave", "expand", "expand_as", "tile", "broadcast_to"}
PICKS = {"__getitem__", "index_select"}  # copy rows if the index names them more than once
# Each row of the result comes from that row of the first input.
ROW_BY_ROW = MATRIX - {"bmm", "baddbmm", "__rmatmul__"} | CONVOLUTIONS | {
    "relu", "relu_", "gelu", "silu", "elu", "leaky_relu", "tanh", "sigmoid", "softplus", "exp",
    "layer_norm", "batch_norm", "group_norm", "max_pool1d", "max_pool2d", "avg_pool2d",
    "adaptive_avg_pool2d", "softmax", "log_softmax", "mul", "__mul__", "div", "__truediv__",
}  # fmt: skip
# Functions of single numbers.
POINTWISE = {
    "add", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "mul", "__mul__", "__rmul__", "div",
    "__truediv__", "pow", "__pow__", "exp", "log", "sqrt", "sin", "cos", "tanh", "sigmoid", "gelu",
    "silu", "softplus", "erf", "where", "clamp",
}  # fmt: skip
MOST_PLACES = 64
READ_FIRST = 3  # results of a line's function; without copies in these, its others are not read


class RowCopies:
    """One per window ``ops``. ``copied``: for each line that copies rows, or that computes with
    copies of unknown origin, ns of computing copies again, and the largest number of copies."""

    def __init__(self) -> None:
        # Number of rows → place of the last copy with as many: of all, and of those by a function
        # that does nothing else.
        self.copies: dict[int, Any] = {}
        self.made: dict[int, Any] = {}
        self.copied: dict[Any, list[int]] = {}
        # id of a result of copied rows → weak reference, copies of each, place.
        self.results: ByTensor[tuple[int, Any]] = ByTensor()
        self.unlike: Counter[Any] = Counter()  # (place, function) → results without copies

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, at: Any, line: LineCalls, took: int
    ) -> None:  # fmt: skip
        """A call of this line, at ``at``, returned after ``took`` ns."""
        if name in COPIES | PICKS:
            if name in COPIES or picks_rows(name, args):
                self._copied(result, at, sure=name in COPIES)
            return
        first = args[0] if args else kwargs.get("input")
        known = self.results.get(first)
        if known is not None:
            if name in ROW_BY_ROW and _same_for_all_rows(first, args, kwargs):
                self._again(line, took, result, *known)
            return
        if took < LONG_NS:
            return
        if name in LAYERS and readable(first) and not _attends_elsewhere(name, args):
            self._computed(first, name, at, line, took, result)
        elif (
            name in POINTWISE
            and self.unlike[at, name] < READ_FIRST
            and readable(result)
            and _varies(result)
        ):
            found = self._computed(result, name, at, line, took, result)
            self.unlike[at, name] += not found

    def _computed(
        self, read: torch.Tensor, name: str, at: Any, line: LineCalls, took: int, result: Any
    ) -> bool:
        """Whether this tensor holds copies, which the call then computed again."""
        copies, origin = _copies(read, name, self.made if name in POINTWISE else self.copies)
        if copies > 1:
            self._again(line, took, result, copies, origin or at)
        return copies > 1

    def _again(self, line: LineCalls, took: int, result: Any, copies: int, place: Any) -> None:
        """A call computed copies."""
        again = round(took * (1 - 1 / copies))
        line.copied += again
        if place in self.copied or len(self.copied) < MOST_PLACES:
            sums = self.copied.setdefault(place, [0, 0])
            sums[0] += again
            sums[1] = max(sums[1], copies)
        if isinstance(result, torch.Tensor):
            self.results.keep(result, (copies, place))

    def _copied(self, result: Any, at: Any, sure: bool) -> None:
        if isinstance(result, torch.Tensor) and result.dim() > 1:
            for number in _numbers_of_copies(result):
                if sure or number not in self.copies:
                    self.copies[number] = at
                if sure:
                    self.made[number] = at

    def report(self) -> dict[str, Any]:
        """The field `copied` of the `ops` record."""
        return {"copied": [[at, *sums] for at, sums in self.copied.items()]}


def picks_rows(name: str, args: Any) -> bool:
    """Whether this pick names rows by their numbers, which may name one more than once."""
    if name != "__getitem__":
        return True
    parts = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(isinstance(part, (torch.Tensor, list)) for part in parts)


def _same_for_all_rows(first: Any, args: Any, kwargs: Any) -> bool:
    """Whether the call's other tensors are weights, or one number a feature."""
    others = (value for value in tensors_in(args, kwargs) if value is not first)
    return all(isinstance(value, torch.nn.Parameter) or value.dim() < 2 for value in others)


def _attends_elsewhere(name: str, args: Any) -> bool:
    """Whether the queries attend to other rows, which may differ where the queries are copies."""
    return name == "multi_head_attention_forward" and any(x is not args[0] for x in args[1:3])


def _varies(value: torch.Tensor) -> bool:
    """Whether the numbers of a row differ: rows of one number are alike for other reasons."""
    first = value.detach().flatten(1)[0] if value.dim() > 1 and len(value) else value
    return value.dim() > 1 and bool((first != first[:1]).any())


def _rows(value: torch.Tensor) -> int:
    return value.numel() // max(1, value.shape[-1])


def _numbers_of_copies(result: torch.Tensor) -> set[int]:
    """How many rows tensors may have that are made of these copies: rows of the first dimension, of
    all dimensions but the last, or of all but the first. An expanded tensor tells which of its
    dimensions holds the copies; else each may."""
    sizes = zip(result.shape, result.stride(), strict=True)
    copied = [at for at, (size, step) in enumerate(sizes) if size > 1 and not step]
    within = range(result.dim())
    counts = (
        (len(result), within[:1]),
        (_rows(result), within[:-1]),
        (result.numel() // max(1, len(result)), within[1:]),
    )
    return {n for n, along in counts if not copied or any(at in along for at in copied)}


def _copies(value: torch.Tensor, name: str, origins: dict[int, Any]) -> tuple[int, Any]:
    """How often each sample or row occurs, along the first dimension or the second, and the place
    that copied as many.

    Data may hold equal numbers (a picture made larger, padding), or the same few samples again and
    again. So without such a place only equal samples side by side count, and no functions.
    """
    spread = math.prod(n for n, step in zip(value.shape, value.stride(), strict=True) if not step)
    if spread > 1:
        counts = _numbers_of_copies(value)  # as where it was expanded
        return spread, next((origins[n] for n in counts if n in origins), None)
    kinds = [value.flatten(1)]
    if name not in CONVOLUTIONS and value.dim() == 3:
        kinds += [value.flatten(0, 1), value.transpose(0, 1).flatten(1)]
    elif name in POINTWISE:
        kinds.append(value.transpose(0, 1).flatten(1))
    found = [(_copies_of_rows(x), origins[len(x)]) for x in kinds if len(x) in origins]
    if name not in POINTWISE:
        found.append((_side_by_side(kinds[0]), None))
    return max(found, key=lambda x: x[0], default=(1, None))


def _copies_of_rows(rows: torch.Tensor) -> int:
    same = _like_the_first(rows)
    if (beside := _side_by_side(rows, same, alike=True)) > 1:
        return beside
    number, period = len(rows), 1 + int(same[1:].to(torch.uint8).argmax())
    if bool(same[1:].any()) and period > 1 and number % period == 0:
        groups = rows.reshape(-1, period, rows.shape[1])
        if bool((groups == groups[:1]).all()):
            return number // period
    return 1


def _side_by_side(rows: torch.Tensor, same: Any = None, alike: bool = False) -> int:
    """The size of the groups of equal rows, 1 without. ``alike``: all rows may be one group."""
    same = _like_the_first(rows) if same is None else same
    number, all_of_them = len(rows), bool(same.all())
    beside = number if all_of_them else int((~same).to(torch.uint8).argmax())
    if beside < 2 or number % beside or (all_of_them and not alike):
        return 1
    groups = rows.reshape(-1, beside, rows.shape[1])
    return beside if bool((groups == groups[:, :1]).all()) else 1


def _like_the_first(rows: torch.Tensor) -> torch.Tensor:
    # A number of each row's own, so that rows of zeros and ones are told apart, too.
    marks = (rows * torch.linspace(0.5, 1.5, rows.shape[1], dtype=rows.dtype)).sum(1)
    return marks == marks[:1]
