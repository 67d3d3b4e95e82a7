"""Results of which a step uses only a small part: scores of all positions where one is read, or
where the loss ignores most.

The results of products and convolutions are followed through views, through what works on each
element, through what makes a row of each row (a softmax, a sum over the last dimension, a
probability that is gathered), and through what joins several, up to the calls that take them. A
slice or an index takes its part, the same index once; a diagonal its numbers, and so does a gather
of scores that no softmax has made depend on their whole row; a cross entropy takes the rows that it
does not ignore; a choice by rows (`torch.where`) takes those it chooses; a product with a column of
mostly zeros (a gate, a mask) takes the rows that it leaves; any other call takes everything, but
for a branch on a truth value: a check of all rows. A linear layer takes of its input the rows that
are taken of its result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..by_tensor import ByTensor
from .frozen_weights import BRANCHES, flat, tensors_in
from .lines import LineCalls
from .operands import JOINS, LONG_NS

PRODUCTS = {
    "linear", "bilinear", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "einsum",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
}  # fmt: skip
# Their result has the elements of their first input, each of which comes from the same element.
ELEMENTWISE = {
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "t",
    "contiguous", "clone", "detach", "float", "double", "half", "bfloat16", "to", "type",
    "relu", "gelu", "silu", "elu", "leaky_relu", "softplus", "tanh", "sigmoid", "dropout", "clamp",
    "clamp_min", "clamp_max",
    "add", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "mul", "__mul__", "__rmul__", "div",
    "__truediv__", "neg", "__neg__", "exp", "log", "pow", "__pow__", "square", "sqrt",
    "broadcast_tensors", "eq", "__eq__", "ge", "__ge__", "gt", "__gt__", "le", "__le__", "lt",
    "__lt__", "isfinite", "isnan",
}  # fmt: skip
# Over the last dimension they make a row, or one number, of each row.
ROWS = {"softmax", "log_softmax", "logsumexp", "sum", "mean", "amax", "all", "any", "gather"}
NORMS = {"layer_norm", "rms_norm"}
MIXES = {"softmax", "log_softmax"} | NORMS  # of which each number depends on its whole row
GATHERS = {"gather", "take_along_dim"}  # which take single numbers of rows
CHECKS = {"all", "any", "_is_all_true"}  # of truth values
PICKS = {
    "__getitem__", "select", "narrow", "index_select", "gather", "take_along_dim", "masked_select",
    "diagonal", "diag", "trace",
}  # fmt: skip
DIAGONALS = {"diagonal", "diag", "trace"}  # which take numbers of all rows
INDICES = (torch.int64, torch.int32, torch.bool)
MULTIPLIES = {"mul", "__mul__", "__rmul__"}
# Numbers of a whole product that take as long as one whose weights are picked by an index: 63 to
# 218 with backward, for 18 to 30,000 rows of weights of 64 to 512 numbers (torch 2.13, two cores).
GATHERED_COSTS = 128
MOST_KEPT = 0.5  # half may be one of two parts
MOST_PRODUCTS = 64  # that a tensor is followed from


class Product:
    """Its result, with what was made of it row by row. ``spent``: the calls' lines and ns.
    ``operand``: id of the parameter; without one, the result's shape; ``recorded``: with gradients.
    ``taken``: the share that was taken; None if nothing took it, as far as was seen; ``indexed``:
    by index tensor, which takes the same rows again. ``rows``: always whole rows. ``layers``: made
    later, that took rows. ``samples_at``: the line that took some samples of the batch. ``kept``:
    what was taken, also by way of layers, at most 1.
    """

    def __init__(self, line: LineCalls, took: int, operand: Any, recorded: bool) -> None:
        self.spent, self.operand, self.recorded = [(line, took)], operand, recorded
        self.taken: float | None = None
        self.indexed: dict[int, tuple[Any, float]] = {}
        self.rows = True
        self.layers: list[Product] = []
        self.samples_at: Any = None
        self.kept: float | None = None

    def take(self, share: float, rows: bool = True, index: Any = None) -> None:
        if index is not None:
            before = self.indexed.get(id(index), (index, 0.0))[1]
            self.indexed[id(index)] = index, max(before, share)
        else:
            self.taken = (self.taken or 0.0) + share
        self.rows = self.rows and rows

    def follow(self) -> None:
        """All that took its result has been seen, and its layers have been followed: there may be
        many ways to a layer, which are not gone one by one."""
        known = [] if self.taken is None else [self.taken]
        known += [share for _, share in self.indexed.values()]
        for layer in self.layers:
            share = layer.kept if layer.rows else 1.0
            known.append(1.0 if share is None else share)
            self.samples_at = self.samples_at or layer.samples_at
        self.kept = min(1.0, sum(known)) if known else None

    @property
    def layer(self) -> tuple[int, Any, bool]:
        """A library's whole model may be one line, so may a function of several operands (a kernel
        of points and of inducing points), and an agent acts without gradients."""
        return id(self.spent[0][0].final), self.operand, self.recorded

    @property
    def wasted(self) -> bool:
        kept = self.kept
        return kept is not None and kept <= MOST_KEPT

    def settle(self, samples: bool) -> None:
        """``samples``: the model could compute the chosen ones alone."""
        kept = self.kept or 0.0
        for line, took in self.spent:
            line.final.thrown_away += round((1 - kept) * took)
            if samples:
                line.final.samples_at = line.final.samples_at or self.samples_at


class Rows(NamedTuple):
    """How a tensor follows from a product: how many of its last dimensions make a row of the
    product's (1 or 0), whether each number depends on its whole row, and whether the tensor also
    holds rows of others: an index takes as many of each, a slice may take one's alone."""

    width: int
    mixed: bool = False
    joined: bool = False


class ThrownAway:
    """One per window ``ops``. ``tensors``: the products that each comes from, and how."""

    def __init__(self) -> None:
        self.made: list[Product] = []
        self.tensors: ByTensor[dict[Product, Rows]] = ByTensor()

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, at: Any, line: LineCalls, took: int
    ) -> None:  # fmt: skip
        """A call of this line, at ``at``, returned after ``took`` ns."""
        results = [value for value in flat((result,)) if isinstance(value, torch.Tensor)]
        first = args[0] if args else kwargs.get("input")
        given = list(tensors_in(args, kwargs))
        long = name in PRODUCTS and took >= LONG_NS and len(results) == 1
        before: list[Product] = []
        passed: list[tuple[Any, Rows, Product]] = []
        for value in given:
            known = self.tensors.get(value)
            if not known or not (results or name in BRANCHES):
                continue  # its shape was asked for
            if len(known) > MOST_PRODUCTS:  # the state of a long recurrence
                for made in known:
                    made.take(1.0)
                continue
            if not results and value.dtype is torch.bool:
                continue
            left = _left_by(given, value) if name in MULTIPLIES else 1.0
            chosen = _chosen_by(args, kwargs, value) if name == "where" else None
            for made, (width, mixed, joined) in known.items():
                onto = None
                if mixed or name not in GATHERS:
                    onto = _made_of(value, width, name, args, kwargs, results)
                if left <= MOST_KEPT:
                    made.spent.append((line, took))
                    made.take(left)
                elif value is first and name == "linear" and width:
                    if long:
                        before.append(made)
                    else:  # too short to be one itself
                        passed.append((results[0], Rows(width), made))
                elif onto is not None:
                    rows_of = Rows(onto[1], mixed or name in MIXES, joined or name in JOINS)
                    passed.append((onto[0], rows_of, made))
                elif chosen is not None:
                    made.take(chosen[0])
                    if chosen[1]:
                        made.samples_at = at
                elif value is first and name in PICKS:
                    rows = not width or results[0].shape[-1:] == value.shape[-1:]
                    rows = rows and name not in DIAGONALS
                    share = results[0].numel() / max(1, value.numel())
                    if name in GATHERS and width and not _of_rows(value, args, kwargs):
                        share = min(1.0, share * GATHERED_COSTS)
                    index = next((x for x in given if x is not value and x.dtype in INDICES), None)
                    if joined and index is None:
                        share = 1.0
                    made.take(share, rows, index)
                    if index is not None and results[0].shape[1:] == value.shape[1:]:
                        made.samples_at = at
                elif value is first and name == "cross_entropy":
                    made.spent.append((line, took))
                    made.take(_not_ignored(args, kwargs))
                else:
                    made.take(1.0)
        if passed:  # once, although it may come from several
            passed[0][2].spent.append((line, took))
        for onto, rows, made in passed:
            self._keep(onto, made, rows)
        if long:
            weights = (v for v in given if isinstance(v, torch.nn.Parameter))
            operand = next(map(id, weights), results[0].shape)
            self.made.append(Product(line, took, operand, results[0].requires_grad))
            self._keep(results[0], self.made[-1], Rows(1))
            for layer in before:
                layer.layers.append(self.made[-1])

    def settle(self) -> None:
        """The window ends. A metric may still take the last step's results, so a layer of which any
        result was used wastes none."""
        for made in reversed(self.made):
            made.follow()
        used = {made.layer for made in self.made if not made.wasted}
        lost = [made for made in self.made if made.layer not in used]
        # Where the chosen samples need most of what a model computes (of a graph), its
        # input cannot be chosen instead.
        mostly = _recorded_ns(lost) > MOST_KEPT * _recorded_ns(self.made)
        for made in lost:
            made.settle(mostly)
        self.made = []
        self.tensors.clear()

    def _keep(self, tensor: Any, made: Product, rows: Rows) -> None:
        if known := self.tensors.get(tensor):
            known[made] = rows
        else:
            self.tensors.keep(tensor, {made: rows})


def _recorded_ns(products: list[Product]) -> int:
    return sum(made.spent[0][1] for made in products if made.recorded)


def _made_of(
    value: Any, width: int, name: str, args: Any, kwargs: Any, results: list[Any]
) -> tuple[Any, int] | None:
    """What the call makes of a value, row by row, and how many of its last dimensions make a row;
    None if it does not."""
    if name == "broadcast_tensors":
        results = [x for x in results if x.shape == value.shape]
    if not results:
        return None
    made, last = results[0], value.dim() - 1
    if name in CHECKS and made.dim() == 0:
        return (made, 0) if value.dtype is torch.bool else None
    if name in ELEMENTWISE:
        if made.numel() == value.numel():
            dropped = value.shape[-1:] == (1,) and made.shape == value.shape[:-1]
            return made, 0 if dropped else width
        spread = value.shape[-1:] == (1,) and made.shape[:-1] == value.shape[:-1]
        return (made, 1) if spread else None
    if name in JOINS:
        beside = made.shape[:-1] == value.shape[:-1]  # wider rows
        return (made, width) if beside or made.shape[-1:] == value.shape[-1:] else None
    dims = kwargs.get("dim", args[1] if len(args) > 1 else None)
    over = dims[0] if isinstance(dims, (list, tuple)) and len(dims) == 1 else dims
    if name in NORMS:
        shape = kwargs.get("normalized_shape", dims)
        return (made, width) if tuple(shape) == value.shape[-1:] else None
    if name not in ROWS or not width or type(over) is not int or over not in (-1, last):
        return None
    if made.shape == value.shape[:-1]:
        return made, 0
    return (made, width) if made.shape[:-1] == value.shape[:-1] else None


def _of_rows(value: Any, args: Any, kwargs: Any) -> bool:
    """Whether a gather takes whole rows: not along the last dimension, and all numbers of each."""
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    index = kwargs.get("index", args[2] if len(args) > 2 else None)
    along = type(dim) is int and dim % value.dim() != value.dim() - 1
    return along and isinstance(index, torch.Tensor) and index.shape[-1:] == value.shape[-1:]


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


def _chosen_by(args: Any, kwargs: Any, value: Any) -> tuple[float, bool] | None:
    """The share of rows that ``torch.where`` takes of one of its values, and whether it chooses
    whole samples; None if it chooses single numbers. On a device, counting would wait for it."""
    given = dict(zip(("condition", "input", "other"), args, strict=False)) | kwargs
    condition = given.get("condition")
    if not isinstance(condition, torch.Tensor) or condition.device.type != "cpu":
        return None
    by_rows = condition.dim() == value.dim() > 0 and condition.shape[-1] == 1 < value.shape[-1]
    if not by_rows or not condition.numel():
        return None
    share: float = int(condition.count_nonzero()) / condition.numel()
    of_samples = condition.shape[0] == condition.numel() == value.shape[0]
    return (share if value is given.get("input") else 1.0 - share), of_samples


def _not_ignored(args: Any, kwargs: Any) -> float:
    """The share of a cross entropy's targets that count. On a device, counting them would wait for
    it."""
    target = kwargs.get("target", args[1] if len(args) > 1 else None)
    if not isinstance(target, torch.Tensor) or target.device.type != "cpu" or not target.numel():
        return 1.0
    ignored = kwargs.get("ignore_index", args[4] if len(args) > 4 else -100)
    return 1.0 - int((target == ignored).sum()) / target.numel()
