"""Buffers that a line copies in each step to change a part.

``queue = torch.cat([queue[n:], keys])``, or ``table = table.clone(); table[rows] = new``. What is
copied records no gradients, so that backward does not need it as it was.
"""

from __future__ import annotations

from typing import Any

import torch

from ..by_tensor import ByTensor
from .lines import LineCalls
from .operands import JOINS

# Each returns a copy of its first argument with other numbers in a part of it.
_CHANGES = {
    "index_copy", "index_put", "index_fill", "index_add", "scatter", "scatter_add", "slice_scatter",
    "select_scatter", "masked_scatter",
}  # fmt: skip
# What leaves a part of a tensor, or all.
_PARTS = {"__getitem__", "narrow", "detach", "view", "reshape"}
MOST_CHANGED = 0.5  # of the numbers
MOST_WAITING = 100  # calls of a line


class CopiedOn:
    """One per window ``ops``."""

    def __init__(self) -> None:
        self.copies: ByTensor[Any] = ByTensor()  # what a line copied, and parts of it → the line
        # A clone that is not changed yet → its line, if that had copied it before, and the call.
        self.clones: ByTensor[tuple[Any, bool, LineCalls, int]] = ByTensor()
        self.changed: ByTensor[tuple[Any, bool]] = ByTensor()  # the same, of a clone that was
        # By line that copies: calls that count once it copies what it copied before. The first copy
        # in the window has none before it.
        self.first: dict[Any, list[tuple[LineCalls, float]]] = {}

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, at: Any, line: LineCalls, took: int
    ) -> None:  # fmt: skip
        """A call of this line, at ``at``, returned after ``took`` ns."""
        if at is None:
            return
        first = args[0] if args else kwargs.get("tensors")
        if name in JOINS and isinstance(first, (list, tuple)):
            if not result.requires_grad:
                own = any(self.copies.get(x) == at for x in first)
                largest = max(x.numel() for x in first)
                self._count(at, own, line, took * largest / max(1, result.numel()))
                self.copies.keep(result, at)
            return
        if not isinstance(first, torch.Tensor):
            return
        own, constant = self.copies.get(first) == at, not first.requires_grad
        if name in _CHANGES and constant:
            if _is_small(kwargs.get("source", args[-1]), first):
                self._count(at, own, line, took)
            self.copies.keep(result, at)
        elif name == "clone" and constant:
            self.clones.keep(result, (at, own, line, took))
            self.copies.keep(result, at)
        elif name == "__setitem__":
            made = self.clones.get(first)
            if made is not None and _is_small(args[2], first):
                origin, own, copying, ns = made
                self._count(origin, own, copying, ns)
                self._count(origin, own, line, took)
                self.clones.drop(first)
                self.changed.keep(first, (origin, own))
        elif name in _PARTS and (origin := self.copies.get(first)):
            self.copies.keep(result, origin)
            changed = self.changed.get(first)
            if changed and result.requires_grad and name == "__getitem__":
                # Its gradient is as large as the buffer.
                self._count(*changed, line, took * max(0.0, 1 - result.numel() / first.numel()))

    def _count(self, at: Any, own: bool, line: LineCalls, ns: float) -> None:
        """``own``: the line copied what it had copied before."""
        waiting = self.first.setdefault(at, [])
        if own:
            for each, spent in (*waiting, (line, ns)):
                each.final.copied_on += round(spent)
            waiting.clear()
        elif len(waiting) < MOST_WAITING:
            waiting.append((line, ns))


def _is_small(written: Any, whole: torch.Tensor) -> bool:
    """Whether what is written is a small part."""
    return not isinstance(written, torch.Tensor) or written.numel() <= MOST_CHANGED * whole.numel()
