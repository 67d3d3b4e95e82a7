"""Remembers learning-rate schedulers as they are made; how far they got is looked at later."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from torch.optim import lr_scheduler

from . import places
from .invisible import hidden

if TYPE_CHECKING:
    from .core import Probe

MOST_SCHEDULERS = 32  # one made anew every step must not fill the disk


class Schedules:
    """The schedulers of torch that were made; one of somebody else's shows in the rates alone."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.alive: list[Any] = []  # weak references, by number

    def install(self) -> None:
        base = getattr(lr_scheduler, "LRScheduler", None) or lr_scheduler._LRScheduler
        # ReduceLROnPlateau does not call its base's __init__.
        for kind in {base, lr_scheduler.ReduceLROnPlateau}:
            self.probe.patches.set(kind, "__init__", self._watched(kind.__init__))

    def _watched(self, original: Any) -> Any:
        schedules = self

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            schedules.probe.guard(schedules._made)(self)

        return hidden(init)

    def _made(self, scheduler: Any) -> None:
        known = any(scheduler is reference() for reference in self.alive)
        if known or len(self.alive) >= MOST_SCHEDULERS:
            return
        self.probe.recorder.write(
            "scheduler", id=len(self.alive), name=type(scheduler).__name__, at=places.caller()
        )
        self.alive.append(weakref.ref(scheduler))

    def steps(self) -> list[int | None]:
        """By number: how often each has stepped; None for one that is gone or does not count."""
        found = (reference() for reference in self.alive)
        return [getattr(scheduler, "last_epoch", None) for scheduler in found]
