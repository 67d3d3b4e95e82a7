"""Marks where the training thread saves a checkpoint: ``torch.save``, safetensors and
``torch.distributed.checkpoint``, and the methods of frameworks that call these. Their modules are
watched once the script has imported them. What a model saves while it computes, such as activations
that it puts on a disk, is no checkpoint."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch

from . import places
from .imports import when_imported
from .patches import RETURNS, hidden
from .record import wall_ns
from .wire import SAVE_BEGIN, SAVE_END, SAVES

if TYPE_CHECKING:
    from .boundary import Boundary
    from .core import Probe
    from .phases import ModuleWatch

MOST_PLACES = 16  # places with a `saver` record


class SaveWatch:
    """One per process. A save inside another one belongs to that."""

    def __init__(self, probe: Probe, boundary: Boundary, modules: ModuleWatch) -> None:
        self.probe, self.boundary, self.modules = probe, boundary, modules
        self.inside = False
        self.known: set[Any] = set()

    def install(self) -> None:
        save = self._watched("torch.save", torch.save)
        self.probe.patches.set(torch, "save", save, RETURNS)
        self.probe.patches.set(torch.serialization, "save", save, RETURNS)
        # Other modules bind these names as soon as the module was executed, so it is watched then.
        for module in SAVES:
            when_imported(module, functools.partial(self._imported, module))

    def _imported(self, name: str, _began: int) -> None:
        self.probe.guard(self._watch)(name)

    def _watch(self, name: str) -> None:
        module = sys.modules[name]
        public = name.replace(".state_dict_saver", "")
        for path in SAVES[name]:
            kind, _, function = path.rpartition(".")
            owner = getattr(module, kind, None) if kind else module
            if original := getattr(owner, function, None):
                watched = self._watched(path if kind else f"{public}.{path}", original)
                self.probe.patches.set(owner, function, watched, RETURNS)

    def _watched(self, name: str, original: Any) -> Any:
        watch, marks, put = self, self.probe.marks, self.probe.marks.put
        boundary, modules = self.boundary, self.modules

        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            computes = modules.depth or boundary.backward_depth
            if watch.inside or computes or not marks.mine():
                return original(*args, **kwargs)
            watch.probe.guard(watch._called)(name)
            watch.inside = True
            marks.interrupted()
            put((SAVE_BEGIN, wall_ns(), 0))
            try:
                return original(*args, **kwargs)
            finally:
                watch.inside = False
                marks.interrupted()
                put((SAVE_END, wall_ns(), 0))

        return hidden(save)

    def _called(self, name: str) -> None:
        """Record the calling line, the first time."""
        place = places.caller()
        key = name, tuple(place or ())
        if key not in self.known and len(self.known) < MOST_PLACES:
            self.known.add(key)
            self.probe.recorder.write("saver", name=name, at=place)
