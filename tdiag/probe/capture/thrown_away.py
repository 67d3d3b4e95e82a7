"""Results of which a step uses only a small part: scores of all positions where one is read, or
where the loss ignores most.

The results of products and convolutions are followed through views and through what works on each
element, up to the calls that take them. A slice or an index takes its part; a cross entropy takes
the rows that it does not ignore; a product with a column of mostly zeros (a gate, a mask) takes the
rows that it leaves; any other call takes everything. A linear layer takes of its input the rows
that are taken of its result.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from .frozen_weights import BRANCHES, MOST_TRACKED, flat, tensors_in
from .lines import LineCalls
from .operands import LONG_NS

PRODUCTS = {
    "linear", "bilinear", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "einsum",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
}  # fmt: skip
# Their result has the elements of their first input, each of which comes from the same element.
ELEMENTWISE = {
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "t",
    "contiguous", "clone", "detach", "float", "double", "half", "bfloat16", "to", "type",
    "relu", "gelu", "silu", "elu", "leaky_relu", "softplus", "tanh", "sigmoid", "dropout", "clamp",
    "add", "__add__", "sub", "__sub__", "mul", "__mul__", "div", "__truediv__", "neg", "exp", "log",
}  # fmt: skip
PICKS = {
    "__getitem__", "select", "narrow", "index_select", "gather", "take_along_dim", "masked_select",
}  # fmt: skip
MULTIPLIES = {"mul", "__mul__", "__rmul__"}
MOST_KEPT = 0.5  # half may be one of two parts


class Product:
    """Its result, with what was made of it element by element. ``spent``: the calls' lines and ns.
    ``weight``: id of the parameter, None without one. ``taken``: the share that was taken; None if
    nothing took it, as far as was seen. ``rows``: always whole rows. ``layers``: that took rows."""

    def __init__(self, line: LineCalls, took: int, weight: int | None) -> None:
        self.spent, self.weight = [(line, took)], weight
        self.taken: float | None = None
        self.rows = True
        self.layers: list[Product] = []

    def take(self, share: float, rows: bool = True) -> None:
        self.taken = (self.taken or 0.0) + share
        self.rows = self.rows and rows

    @property
    def kept(self) -> float | None:
        """What was taken, also by way of layers; at most 1."""
        known = [] if self.taken is None else [self.taken]
        for layer in self.layers:
            share = layer.kept if layer.rows else 1.0
            known.append(1.0 if share is None else share)
        return min(1.0, sum(known)) if known else None

    @property
    def layer(self) -> tuple[int, int | None]:
        """A library's whole model may be one line."""
        return id(self.spent[0][0].final), self.weight

    @property
    def wasted(self) -> bool:
        kept = self.kept
        return kept is not None and kept <= MOST_KEPT

    def settle(self) -> None:
        kept = self.kept or 0.0
        for line, took in self.spent:
            line.final.thrown_away += round((1 - kept) * took)


class ThrownAway:
    """One per window ``ops``. Results are known by id, each with a weak reference."""

    def __init__(self) -> None:
        self.made: list[Product] = []
        self.tensors: dict[int, tuple[Any, Product]] = {}

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, line: LineCalls, took: int
    ) -> None:  # fmt: skip
        """A call of this line returned after ``took`` ns."""
        results = [value for value in flat((result,)) if isinstance(value, torch.Tensor)]
        first = args[0] if args else kwargs.get("input")
        given = list(tensors_in(args, kwargs))
        long = name in PRODUCTS and took >= LONG_NS and len(results) == 1
        before: Product | None = None
        for value in given:
            made = self._known(value)
            if made is None or not (results or name in BRANCHES):
                continue  # its shape was asked for
            left = _left_by(given, value) if name in MULTIPLIES else 1.0
            if left <= MOST_KEPT:
                made.spent.append((line, took))
                made.take(left)
            elif value is first and name == "linear" and long:
                before = made
            elif value is first and name in ELEMENTWISE and results[0].numel() == value.numel():
                made.spent.append((line, took))
                self._keep(results[0], made)
            elif value is first and name in PICKS:
                rows = results[0].shape[-1:] == value.shape[-1:]
                made.take(results[0].numel() / max(1, value.numel()), rows)
            elif value is first and name == "cross_entropy":
                made.spent.append((line, took))
                made.take(_not_ignored(args, kwargs))
            else:
                made.take(1.0)
        if long:
            weights = (v for v in given if isinstance(v, torch.nn.Parameter))
            self.made.append(Product(line, took, next(map(id, weights), None)))
            self._keep(results[0], self.made[-1])
            if before is not None:
                before.layers.append(self.made[-1])

    def settle(self) -> None:
        """The window ends. A metric may still take the last step's results, so a layer of which any
        result was used wastes none."""
        used = {made.layer for made in self.made if not made.wasted}
        for made in self.made:
            if made.layer not in used:
                made.settle()
        self.made, self.tensors = [], {}

    def _known(self, tensor: Any) -> Product | None:
        known = self.tensors.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def _keep(self, tensor: Any, made: Product) -> None:
        if len(self.tensors) < MOST_TRACKED:
            self.tensors[id(tensor)] = weakref.ref(tensor), made


def _left_by(given: list[Any], value: Any) -> float:
    """The share of the rows of ``value`` that the other factor leaves: a column, one number a row.
    On a device, counting them would wait for it."""
    others = [x for x in given if x is not value]
    column = others[0] if len(others) == 1 else None
    if column is None or column.device.type != "cpu" or not column.numel():
        return 1.0
    whole = column.dim() == value.dim() and column.shape[:-1] == value.shape[:-1]
    if not whole or column.shape[-1] != 1 or value.shape[-1] == 1:
        return 1.0
    left: float = int(column.count_nonzero()) / column.numel()
    return left


def _not_ignored(args: Any, kwargs: Any) -> float:
    """The share of a cross entropy's targets that count. On a device, counting them would wait for
    it."""
    target = kwargs.get("target", args[1] if len(args) > 1 else None)
    if not isinstance(target, torch.Tensor) or target.device.type != "cpu" or not target.numel():
        return 1.0
    ignored = kwargs.get("ignore_index", args[4] if len(args) > 4 else -100)
    return 1.0 - int((target == ignored).sum()) / target.numel()
