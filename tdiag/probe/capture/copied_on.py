"""Buffers that a line copies in each step to change a part.

``queue = torch.cat([queue[n:], keys])``, or ``table = table.clone(); table[rows] = new``.
"""

from __future__ import annotations

from typing import Any

import torch

from ..by_tensor import ByTensor
from .lines import LineCalls

JOINS = {"cat", "concat", "concatenate", "hstack", "vstack", "row_stack"}
# Each returns a copy of its first argument with other numbers in a part of it.
_CHANGES = {
    "index_copy", "index_put", "index_fill", "index_add", "scatter", "scatter_add", "slice_scatter",
    "select_scatter", "masked_scatter",
}  # fmt: skip
# What leaves a part of a tensor, or all.
_PARTS = {"__getitem__", "narrow", "detach", "view", "reshape"}
MOST_CHANGED = 0.5  # of the numbers


class CopiedOn:
    """One per window ``ops``."""

    def __init__(self) -> None:
        self.copies: ByTensor[Any] = ByTensor()  # what a line copied, and parts of it → the line
        self.cloned: ByTensor[tuple[LineCalls, int]] = ByTensor()  # not yet changed → took, ns
        self.changed: ByTensor[bool] = ByTensor()

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, at: Any, line: LineCalls, took: int
    ) -> None:  # fmt: skip
        """A call of this line, at ``at``, returned after ``took`` ns."""
        if at is None:
            return
        first = args[0] if args else kwargs.get("tensors", kwargs.get("input"))
        if name in JOINS and isinstance(first, (list, tuple)):
            before = sum(x.numel() for x in first if self.copies.get(x) == at)
            if before and not result.requires_grad:
                line.copied_on += round(took * before / max(1, result.numel()))
            self.copies.keep(result, at)
        elif name in _CHANGES:
            if self.copies.get(first) == at and _is_small(kwargs.get("source", args[-1]), first):
                line.copied_on += took
            self.copies.keep(result, at)
        elif name == "clone":
            if self.copies.get(first) == at:
                self.cloned.keep(result, (line, took))
            self.copies.keep(result, at)
        elif name == "__setitem__":
            cloned = self.cloned.get(first)
            if cloned is not None and _is_small(args[2], first):
                cloned[0].copied_on += cloned[1]
                line.copied_on += took
                self.cloned.drop(first)
                self.changed.keep(first, True)
        elif name in _PARTS and (origin := self.copies.get(first)):
            self.copies.keep(result, origin)
            if first in self.changed and result.requires_grad and name == "__getitem__":
                # Its gradient is as large as the buffer.
                line.copied_on += round(took * max(0.0, 1 - result.numel() / first.numel()))


def _is_small(written: Any, whole: torch.Tensor) -> bool:
    """Whether what is written is a small part."""
    return not isinstance(written, torch.Tensor) or written.numel() <= MOST_CHANGED * whole.numel()
