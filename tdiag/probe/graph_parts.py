"""What a backward pass computes for whose sake: its nodes, products and numbers, by the owners of
the parameters that they lead to."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from .wire import MOST_GRAPH_NODES

MOST_SETS = 64  # of owners: an optimizer for each parameter makes one for each node
# The operands among what these nodes' gradients go on to.
PRODUCTS = {
    "MmBackward0": (0, 1), "BmmBackward0": (0, 1), "AddmmBackward0": (1, 2),
    "BaddbmmBackward0": (1, 2), "ConvolutionBackward0": (0, 1),
}  # fmt: skip


@dataclass
class ComputedFor:
    """``nodes`` of a graph, the ``products`` (multiplications) that they compute, and ``numbers``:
    the elements of the gradients that they take."""

    nodes: int = 0
    products: float = 0
    numbers: float = 0


def parts(
    root: Any, owner_of: Callable[[Any], Hashable | None]
) -> dict[frozenset[Hashable | None], ComputedFor]:
    """By the owners of the leaves that nodes lead to. The gradient of an operand counts for the
    owners that it leads to. OverflowError in a graph of more than ``MOST_GRAPH_NODES``, or of more
    than ``MOST_SETS`` sets of owners."""
    owners: dict[Any, frozenset[Hashable | None]] = {}
    found: dict[frozenset[Hashable | None], ComputedFor] = {}
    left = [] if root is None else [root]
    while left:
        node = left[-1]
        below = [child for child, _ in node.next_functions if child is not None]
        waiting = [child for child in below if child not in owners]
        left += waiting
        if waiting:
            continue
        left.pop()
        if node in owners:
            continue
        leaf = getattr(node, "variable", None)
        mine = frozenset(() if leaf is None else (owner_of(leaf),)).union(
            *(owners[child] for child in below)
        )
        owners[node] = mine
        if len(owners) > MOST_GRAPH_NODES or len(found) > MOST_SETS:
            raise OverflowError("a graph too large to walk through")
        part = found.setdefault(mine, ComputedFor())
        part.nodes += 1
        part.numbers += sum(math.prod(shape) for shape in _shapes(node) if shape is not None)
        for child, products in _products(node):
            found.setdefault(owners[child], ComputedFor()).products += products
    return found


def _shapes(node: Any) -> list[tuple[int, ...] | None]:
    """Of the gradients that a node takes; None: not known."""
    return [x and tuple(x.shape) for x in getattr(node, "_input_metadata", ())]


def _products(node: Any) -> list[tuple[Any, float]]:
    """The operands whose gradients it computes, as nodes, and the multiplications of each. Nothing
    for a convolution whose weight takes no gradient: its size is not known without reading it."""
    operands = PRODUCTS.get(type(node).__name__)
    if operands is None:
        return []
    taken = _shape(node, 0)
    first, second = (_shape(*node.next_functions[k]) for k in operands)
    if taken is None:
        return []
    products = float(math.prod(taken))
    if not type(node).__name__.startswith("Convolution"):
        products *= first[-1] if first else second[-2] if second else 0
    elif second is None:
        return []
    else:  # the weight is used at each position, of the input if it is transposed
        products *= math.prod(second) / taken[1]
        if node._saved_transposed:
            products /= math.prod(node._saved_stride)
    return [(node.next_functions[k][0], products) for k in operands if node.next_functions[k][0]]


def _shape(node: Any, index: int) -> tuple[int, ...] | None:
    shapes = [] if node is None else _shapes(node)
    return shapes[index] if index < len(shapes) else None
