"""Objects made before the probe was loaded: notebooks make an optimizer in one cell and train in
the next, and a training that runs has made all of its own."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from torch.optim import Optimizer, lr_scheduler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .boundary import UNKNOWN

if TYPE_CHECKING:
    from .boundary import Boundary
    from .inspection import Inspection
    from .loaders import LoaderWatch


def adopt(
    boundary: Boundary, inspection: Inspection, loaders: LoaderWatch, before: Boundary | None = None
) -> None:
    """Treat them as made now, by an unknown line unless a probe has watched ``before``. Modules are
    found when they are used, and so are loaders whose iterator no probe has numbered."""
    base = getattr(lr_scheduler, "LRScheduler", None) or lr_scheduler._LRScheduler
    schedulers = (base, lr_scheduler.ReduceLROnPlateau)  # the latter is no subclass in torch 2.1
    known = before.known if before is not None else {}
    for found in gc.get_objects():
        kind = type(found)  # `isinstance` asks a proxy for its class
        if issubclass(kind, Optimizer) and hasattr(found, "param_groups"):
            boundary.adopt(found, known.get(id(found), UNKNOWN)[1])
        elif issubclass(kind, schedulers):
            inspection.schedules.adopt(found)
        elif issubclass(kind, _BaseDataLoaderIter):
            loaders.adopt(found)
