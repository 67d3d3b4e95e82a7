"""Broadcast products, differences and comparisons that are summed right away.

``(x[:, :, None] * w).sum(1)`` is a matrix product, ``(x[:, None] - y).pow(2).sum(-1)`` a matrix of
distances: a single call computes either without writing the large intermediate tensor. What a
comparison of all pairs, ``t[:, None] < t``, selects of one row of values for a sum, sorting and a
cumulative sum give as well; what it counts, sorting alone.

And outer products: ``x @ kron(a, b)``, or the cumulative sum of ``einsum("td,te->tde", k, v)``
times ``q``. Multiplied in another order, or block by block, the large tensor is never made.
Diagonal matrices: ``diag(v) @ w`` is ``v[:, None] * w``. And maps that are made larger before a
convolution of single pixels, with fewer channels, that gives the same on the small map.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from ..by_tensor import ByTensor
from .frozen_weights import tensors_in

if TYPE_CHECKING:
    from .lines import LineCalls

PRODUCT, DIFFERENCE, COMPARISON = "product", "difference", "comparison"
OUTER, DIAGONAL, ENLARGED = "outer", "diagonal", "enlarged"
SPREADS = {
    "mul": PRODUCT, "__mul__": PRODUCT, "__rmul__": PRODUCT, "multiply": PRODUCT,
    "sub": DIFFERENCE, "__sub__": DIFFERENCE, "__rsub__": DIFFERENCE, "subtract": DIFFERENCE,
    **dict.fromkeys(
        ("lt", "le", "gt", "ge", "__lt__", "__le__", "__gt__", "__ge__", "less", "less_equal",
         "greater", "greater_equal"), COMPARISON,
    ),
    "kron": OUTER, "outer": OUTER, "ger": OUTER, "einsum": OUTER,
    "diag": DIAGONAL, "diag_embed": DIAGONAL, "diagflat": DIAGONAL,
    "interpolate": ENLARGED, "upsample": ENLARGED,
}  # fmt: skip
# Calls on it before it is summed.
BETWEEN = {
    PRODUCT: set(),
    DIFFERENCE: {"pow", "__pow__", "square", "abs"},
    COMPARISON: {
        "__invert__", "logical_not", "float", "double", "to", "type", "masked_fill", "where", "mul",
        "__mul__", "__rmul__",
    },
    # Neither a mask nor a function of each element: after these all elements count.
    OUTER: {
        "cumsum", "reshape", "view", "flatten", "unflatten", "transpose", "permute", "movedim", "t",
        "swapaxes", "contiguous", "clone", "to", "float", "__getitem__", "unsqueeze", "squeeze",
        "expand", "add", "__add__", "__radd__", "sub", "__sub__", "neg", "__neg__", "mul",
        "__mul__", "__rmul__", "div", "__truediv__",
    },
    # The result is diagonal as well.
    DIAGONAL: {
        "expand", "reshape", "view", "transpose", "contiguous", "clone", "to", "unsqueeze",
        "squeeze", "mul", "__mul__", "__rmul__", "div", "__truediv__", "neg", "__neg__", "sqrt",
        "pow", "__pow__", "cholesky", "linalg_cholesky", "inverse", "linalg_inv", "matrix_exp",
        "linalg_matrix_exp",
    },
    ENLARGED: set(),
}  # fmt: skip
PRODUCTS = ("mul", "__mul__", "__rmul__", "div", "__truediv__")
# Of two of a kind: what sums the result sums both.
ADDS = ("add", "__add__", "__radd__", "__iadd__", "add_", "sub", "__sub__")
SUMS = {
    PRODUCT: {"sum"},
    DIFFERENCE: {"sum", "norm", "vector_norm", "linalg_vector_norm"},
    COMPARISON: {"sum", "mean", "logsumexp", "__matmul__", "matmul", "mv"},
    OUTER: {
        "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "einsum", "addmm",
        "baddbmm", "linalg_solve", "solve",
    },
    DIAGONAL: {
        "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "addmm", "baddbmm",
        "det", "linalg_det", "logdet", "slogdet", "linalg_slogdet", "linalg_cholesky_ex",
        "linalg_solve", "linalg_solve_triangular", "cholesky_solve", "linalg_eigh",
        "linalg_eigvalsh",
    },
    ENLARGED: {"conv1d", "conv2d", "conv3d"},
}  # fmt: skip
# Elements of a tensor; with fewer, a single call gained little or nothing.
FEWEST = {
    PRODUCT: 1 << 16, DIFFERENCE: 1 << 16, COMPARISON: 1 << 18, OUTER: 1 << 16,
    DIAGONAL: 1 << 14, ENLARGED: 1 << 16,
}  # fmt: skip
WHOLE = (OUTER, DIAGONAL)  # what uses one may have further large inputs
LARGER = 8  # times its inputs: smaller results come from a bias or a mask, not from all pairs


Call: TypeAlias = "tuple[LineCalls, int]"  # its line, and its time in ns


class Spread(NamedTuple):
    """A large tensor, its kind, and the calls that made it."""

    tensor: Any
    kind: str
    calls: tuple[Call, ...]


class Contractions:
    """One per window ``ops``."""

    def __init__(self) -> None:
        # Large tensors → kind, and the calls that made them.
        self.spread: ByTensor[tuple[str, tuple[Call, ...]]] = ByTensor()

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, line: LineCalls, elapsed: int
    ) -> None:
        """A call returned; ``line`` made it."""
        if not args:
            return
        given = list(tensors_in(args, kwargs))
        large = [Spread(value, *x) for value in given if (x := self.spread.get(value))]
        if len(large) == 1:
            self._used(name, args, kwargs, given, result, large[0], (line, elapsed))
        elif large and name not in PRODUCTS and all(x.kind == OUTER for x in large):
            self._whole(name, OUTER, args, result, large, (line, elapsed))
        elif large and name in ADDS and {x.kind for x in large} in ({PRODUCT}, {DIFFERENCE}):
            calls = (*(made for x in large for made in x.calls), (line, elapsed))
            self._keep(result, large[0].kind, calls)
        elif name in SPREADS and (name != "einsum" or _is_outer(args)):
            most = max(map(_stored, given), default=0)
            if isinstance(result, torch.Tensor) and result.numel() >= LARGER * max(most, 1):
                self._keep(result, SPREADS[name], ((line, elapsed),))

    def _used(
        self, name: str, args: Any, kwargs: Any, given: list[Any], result: Any, large: Spread,
        call: Call,
    ) -> None:  # fmt: skip
        """A call with one large tensor."""
        mine, kind, calls = large.tensor, large.kind, (*large.calls, call)
        rows = all(_row(value) for value in given if value is not mine)
        if kind in WHOLE and (rows or name in SUMS[kind]):
            self._whole(name, kind, args, result, [large], call)
        if kind == ENLARGED and name in SUMS[kind] and _narrows(given):
            _count(calls, kind)
        if kind in (*WHOLE, ENLARGED) or not rows:
            return
        along = kwargs.get("dim", args[1] if len(args) > 1 else None) is not None
        if name in BETWEEN[kind]:
            self._keep(result, kind, calls)
        elif name in SUMS[kind] and args[0] is mine and along:
            _count(calls, kind)

    def _whole(
        self, name: str, kind: str, args: Any, result: Any, large: list[Spread],
        call: Call,
    ) -> None:  # fmt: skip
        """A call with outer products or a diagonal matrix. Making one counts at its first use."""
        calls = (*(made for x in large for made in x.calls), call)
        mine = large[0].tensor
        if name in SUMS[kind]:
            if "solve" in name and args[0] is not mine:
                return  # the right-hand side: an inverse is wanted
            _count(calls, kind)
            for made in large:
                self.spread.keep(made.tensor, (kind, ()))
        elif name in BETWEEN[kind] and (kind == OUTER or result.shape[-2:] == mine.shape[-2:]):
            self._keep(result, kind, calls)

    def _keep(self, result: Any, kind: str, calls: tuple[Call, ...]) -> None:
        if not isinstance(result, torch.Tensor):
            return
        if result.numel() >= FEWEST[kind]:
            self.spread.keep(result, (kind, calls))


def _is_outer(args: Any) -> bool:
    """Whether an einsum sums nothing: all letters of its inputs are in its output."""
    given, arrow, made = str(args[0]).partition("->")
    return bool(arrow) and set(given) - set(", .") <= set(made)


def _narrows(given: list[Any]) -> bool:
    """Whether a convolution of single pixels has fewer channels than its input."""
    _, weight, *_ = given
    return math.prod(weight.shape[2:]) == 1 and bool(weight.shape[0] < weight.shape[1])


def _count(calls: tuple[Call, ...], kind: str) -> None:
    for line, elapsed in calls:
        line.contracted += elapsed
        line.contraction = kind


def _stored(values: torch.Tensor) -> int:
    """Its elements without those that ``expand`` only repeats."""
    if values.layout is not torch.strided:
        return values.numel()
    return math.prod(n for n, step in zip(values.shape, values.stride()) if step)


def _row(values: torch.Tensor) -> bool:
    """Whether these are the values of one row, or a number, also if they are expanded over all
    pairs."""
    if values.layout is not torch.strided:
        return False
    return sum(n > 1 and step != 0 for n, step in zip(values.shape, values.stride())) <= 1
