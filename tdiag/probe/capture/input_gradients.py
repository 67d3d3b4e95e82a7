"""Gradients that backward computes for what is trained by nobody, and that nothing reads: of an
input, or of a frozen layer's result, that was made to require one.

A node of the graph is there for them alone if it leads to such tensors and to no parameter. Inputs
of reentrant checkpoints must require gradients, so graphs with such nodes are left out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from .. import places
from ..by_tensor import ByTensor
from ..models import node_of
from ..wire import MOST_GRAPH_NODES
from .never_used import UnusedResults

_Tensor: Any = torch.Tensor
READS, REQUIRES = _Tensor.grad.__get__, _Tensor.requires_grad.__set__
MOST_PLACES, MOST_LEAVES = 64, 1_000
CHECKPOINT = "CheckpointFunction"


class InputGradients:
    """One per window ``ops``."""

    def __init__(self, trained: Collection[int], calls: UnusedResults) -> None:
        """``trained``: the ids of all tensors that optimizers have. ``calls``: the calls that
        recorded gradients, which tell how long each node's forward took."""
        self.trained, self.calls = trained, calls
        # Where each tensor was made to require gradients, () if that is unknown.
        self.required: ByTensor[tuple[Any, ...]] = ByTensor(MOST_LEAVES)
        # The same for those that a backward has reached, until their gradients are read.
        self.unread: ByTensor[tuple[Any, ...]] = ByTensor(MOST_LEAVES)
        # Place → nodes that lead to such tensors alone, nodes in all, and the ns of the calls that
        # made both, summed over backwards.
        self.lines: dict[Any, list[int]] = {}
        self.read: set[Any] = set()  # places whose gradients are used

    def touched(self, func: Any, name: str, args: Any) -> None:
        """A property of a tensor was read or set, or it was made to require gradients."""
        tensor = args[0] if args else None
        if not isinstance(tensor, torch.Tensor):
            return
        if func == READS:
            if tensor in self.unread:
                self.read.add(self.unread.get(tensor))
            return
        asked = (name == "requires_grad_" or func == REQUIRES) and tensor.requires_grad
        odd = asked and tensor.is_leaf and not isinstance(tensor, torch.nn.Parameter)
        if odd:
            self.required.keep(tensor, tuple(places.caller() or ()))

    def backward_begins(self, loss: Any) -> None:
        if not self.required:
            return
        leaves: list[Any] = []
        reached = self._reached(node_of(loss), leaves)
        alone = sum(reached.values())
        if not alone or len(self.lines) >= MOST_PLACES:
            return
        for leaf in leaves:
            place = self.required.get(leaf) or ()
            self.unread.keep(leaf, place)
            if leaf._backward_hooks:
                self.read.add(place)
        numbers: dict[int | None, bool] = {n._sequence_nr(): its for n, its in reached.items()}
        spent = self.calls.spent(numbers)
        sums = self.lines.setdefault(place, [0, 0, 0, 0])
        sums[:] = map(sum, zip(sums, (alone, len(reached), *spent), strict=True))

    def _asked(self, leaf: Any) -> bool:
        """Whether it was made to require gradients in the counted steps, and nobody trains it."""
        return leaf in self.required and id(leaf) not in self.trained

    def _reached(self, root: Any, leaves: list[Any]) -> dict[Any, bool]:
        """Every node, and whether it leads to such tensors alone; empty if the graph is too large
        or has reentrant checkpoints. Appends the tensors."""
        leads: dict[Any, tuple[bool, bool]] = {}  # node → to such a tensor, to another
        left = [(root, False)] if root is not None else []
        while left:
            node, below_done = left.pop()
            if not below_done:
                if node in leads:
                    continue
                if len(leads) > MOST_GRAPH_NODES or node.name().startswith(CHECKPOINT):
                    return {}
                leads[node] = False, False
                left.append((node, True))
                left += [(n, False) for n, _ in node.next_functions if n is not None]
                continue
            leaf = getattr(node, "variable", None)
            known = [leads[n] for n, _ in node.next_functions if n is not None]
            asked, other = any(a for a, _ in known), any(o for _, o in known)
            if isinstance(leaf, torch.Tensor):
                asked = self._asked(leaf)
                other = not asked
                leaves += [leaf] * asked
            leads[node] = asked, other
        return {node: asked and not other for node, (asked, other) in leads.items()}

    def report(self) -> dict[str, Any]:
        """The field `input_gradients` of the `ops` record."""
        unread = (x for x in self.lines.items() if x[0] not in self.read)
        rows = [[place or None, *sums] for place, sums in unread]
        return {"input_gradients": rows}
