"""Objects made before the probe was loaded: notebooks make an optimizer in one cell and train in
the next, and a training that runs has made all of its own."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer, lr_scheduler
from torch.utils.data._utils.fetch import _BaseDatasetFetcher
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter

from .boundary import UNKNOWN

if TYPE_CHECKING:
    from .boundary import Boundary
    from .inspection import Inspection
    from .loaders import LoaderWatch


def adopt(
    boundary: Boundary, inspection: Inspection, loaders: LoaderWatch, before: Boundary | None = None
) -> None:
    """Treat them as made now, by an unknown line unless a probe has watched ``before``. Modules are
    found when they are used, and DataLoaders by the iterators that are in use."""
    base = getattr(lr_scheduler, "LRScheduler", None) or lr_scheduler._LRScheduler
    schedulers = (base, lr_scheduler.ReduceLROnPlateau)  # the latter is no subclass in torch 2.1
    known = before.known if before is not None else {}
    made_by, iterators = {}, []
    for found in gc.get_objects():
        kind = type(found)  # `isinstance` asks a proxy for its class
        if issubclass(kind, Optimizer) and hasattr(found, "param_groups"):
            boundary.adopt(found, known.get(id(found), UNKNOWN)[1])
        elif issubclass(kind, schedulers):
            inspection.schedules.adopt(found)
        elif issubclass(kind, _BaseDataLoaderIter):
            iterators.append(found)
        elif issubclass(kind, DataLoader) and hasattr(found, "batch_sampler"):
            made_by[id(found._index_sampler)] = found
    for iterator in iterators:
        loaders.adopt(iterator, made_by.get(id(iterator._index_sampler)) or Gone(iterator))


def let_go() -> None:
    """Take from iterators and fetchers in use what :class:`LoaderWatch` has put on them."""
    for found in gc.get_objects():
        if issubclass(type(found), (_BaseDataLoaderIter, _BaseDatasetFetcher)):
            vars(found).pop("tdiag_loader", None)
            if vars(found).pop("tdiag_timing", None):
                found.collate_fn = found.collate_fn.__wrapped__


class Gone:
    """What a DataLoader was made with, by its iterator: nothing else may hold it."""

    multiprocessing_context = None
    batch_size = None  # the sampler has it

    def __init__(self, iterator: Any) -> None:
        chosen = iterator._index_sampler
        self.dataset = iterator._dataset
        self.batch_sampler = chosen if iterator._auto_collation else None
        self.sampler = getattr(chosen, "sampler", chosen)
        self.num_workers = iterator._num_workers
        self.prefetch_factor = getattr(iterator, "_prefetch_factor", None)
        self.pin_memory = iterator._pin_memory
        self.persistent_workers = getattr(iterator, "_persistent_workers", False)
        self.drop_last = iterator._drop_last
        self.in_order = getattr(iterator, "_in_order", None)
        self.collate_fn = iterator._collate_fn
