"""Iterators of DataLoaders whose class has an ``__iter__`` of its own (torchdata's
StatefulDataLoader), and what an iterator has ready."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data import dataloader as _dataloader

from .patches import hidden


def ready(iterator: Any) -> int:
    """Batches already waiting in the queue; −1 if there is no queue or it cannot be read."""
    queue = getattr(iterator, "_data_queue", None)
    if queue is None:
        return -1
    try:
        return int(queue.qsize())
    except (NotImplementedError, OSError):  # macOS has no sem_getvalue
        return -1


class OwnIterators:
    """Such a class replaces ``__init__`` and ``__iter__``, but each of its iterators is one of
    torch's, whose ``__init__`` gets the loader before it starts workers; and each loader checks its
    number of workers when it is made.

    ``watch``: a LoaderWatch. ``in_torchs``: torch's own ``__iter__`` runs, which the watch sees; a
    class's own may call it. ``begun``: iterators whose pass has begun here, with the loader's
    number and whether it is the loader's first."""

    def __init__(self, watch: Any) -> None:
        self.watch = watch
        self.in_torchs = False
        self.begun: Any = weakref.WeakKeyDictionary()

    def install(self) -> None:
        patches, base = self.watch.probe.patches, _dataloader._BaseDataLoaderIter
        checks = "check_worker_number_rationality"
        patches.set(DataLoader, checks, self._before(getattr(DataLoader, checks), self._made))
        patches.set(base, "__init__", self._before(base.__init__, self._iterates))
        patches.set(base, "_reset", self._before(base._reset, self._again))

    def number(self, iterator: Any) -> int:
        """The loader's number at an iterator's first batch of a pass that began here."""
        number: int
        number, new = self.begun.pop(iterator)
        self.watch.iterator_made(iterator, number, 0, new)
        return number

    def _before(self, original: Any, look: Any) -> Any:
        guarded = self.watch.probe.guard(look)

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            guarded(self, *args, **kwargs)
            return original(self, *args, **kwargs)

        return hidden(method)

    def _made(self, loader: Any) -> None:
        if loader not in self.watch.known.origins:
            self.watch.known.made(loader)

    def _iterates(self, iterator: Any, loader: Any) -> None:
        if self.in_torchs or type(loader).__iter__ is DataLoader.__iter__:
            return
        if self.watch.probe.marks.mine():
            new = loader not in self.watch.known.numbers
            self.begun[iterator] = self.watch.known.begin_pass(loader), new

    def _again(self, iterator: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter and hasattr(iterator, "tdiag_loader"):
            self._iterates(iterator, loader)
