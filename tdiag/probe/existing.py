"""Objects made before the probe was loaded: notebooks make an optimizer in one cell and train in
the next."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from torch.optim import Optimizer, lr_scheduler

if TYPE_CHECKING:
    from .boundary import Boundary
    from .inspection import Inspection


def adopt(boundary: Boundary, inspection: Inspection) -> None:
    """Treat them as made now, by an unknown line. Modules and loaders are found when they are
    used."""
    base = getattr(lr_scheduler, "LRScheduler", None) or lr_scheduler._LRScheduler
    schedulers = (base, lr_scheduler.ReduceLROnPlateau)  # the latter is no subclass in torch 2.1
    for found in gc.get_objects():
        kind = type(found)  # `isinstance` asks a proxy for its class
        if issubclass(kind, Optimizer) and hasattr(found, "param_groups"):
            boundary.adopt(found)
        elif issubclass(kind, schedulers):
            inspection.schedules.adopt(found)
