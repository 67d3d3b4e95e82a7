"""Copies that are only read, of tensors that do not change meanwhile: they could be read instead.

``table.clone()``, or a tensor in an object that ``copy.deepcopy`` or ``dataclasses.asdict`` copies.
A copy counts once its memory is free, if neither it nor what it was made of has changed since.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..models import plain
from .lines import LineCalls
from .operands import LONG_NS

COPIES = {"clone", "__deepcopy__"}
# These hand out the memory; what is written there changes no version.
HANDS_OUT = {
    "numpy", "__array__", "data_ptr", "__dlpack__", "untyped_storage", "storage", "share_memory_",
}  # fmt: skip
MOST_WATCHED = 32  # at once


class Memory:
    """Of a tensor. ``version``: a tensor without memory that shares the tensor's version, as its
    views do."""

    __slots__ = ("reference", "tensor", "version", "versions")

    def __init__(self, tensor: Any) -> None:
        self.tensor, self.reference = weakref.ref(tensor), StorageWeakRef(tensor.untyped_storage())
        self.version = tensor.detach()
        self.version.data = tensor.new_empty(0)
        self.versions = self.version._version

    @property
    def changed(self) -> bool:
        return self.version._version != self.versions  # type: ignore[no-any-return]

    @property
    def free(self) -> bool:
        return self.reference.expired()  # type: ignore[no-any-return]


class WatchedCopy:
    """``of``: what was copied."""

    __slots__ = ("line", "made", "of", "took")

    def __init__(self, source: Any, made: Any, line: LineCalls, took: int) -> None:
        self.of, self.made, self.line, self.took = Memory(source), Memory(made), line, took

    @property
    def needed(self) -> bool:
        """Whether one of the two has changed. Of memory that outlives its tensor this is unknown:
        ``x.data`` has versions of its own."""
        lost = self.of.tensor() is None and not self.of.free
        return self.of.changed or self.made.changed or lost


class CopiedToRead:
    """One per window ``ops``."""

    def __init__(self) -> None:
        self.watched: list[WatchedCopy] = []

    def seen(self, name: str, args: Any, result: Any, line: LineCalls, took: int) -> None:
        """A call of this line returned after ``took`` ns."""
        if self.watched:
            self._look()
            if name in HANDS_OUT and args and isinstance(args[0], torch.Tensor):
                handed = StorageWeakRef(args[0].untyped_storage()).cdata
                self.watched = [x for x in self.watched if x.made.reference.cdata != handed]
        if name not in COPIES or took < LONG_NS or len(self.watched) >= MOST_WATCHED or not args:
            return
        source = args[0]
        if source.requires_grad or result is source or not (plain(source) and plain(result)):
            return
        # Memory of a NumPy array, a file or another process may be written without torch.
        shared = source.device.type == "cpu" and source.is_shared()
        if shared or not source.untyped_storage().resizable():
            return
        if not (source.is_inference() or result.is_inference()):
            self.watched.append(WatchedCopy(source, result, line, took))

    def _look(self) -> None:
        """Count what is gone, and leave out what was needed."""
        kept = []
        for copy in self.watched:
            if copy.needed:
                continue
            if copy.made.free:
                copy.line.final.copied_to_read += copy.took
            else:
                kept.append(copy)
        self.watched = kept
