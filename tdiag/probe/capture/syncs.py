"""Lines that make the host wait for the device."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any

import torch

from .. import accelerator, places
from ..patches import Patches, hidden

MESSAGE = "called a synchronizing CUDA operation"
PROTOTYPE = "Synchronization debug mode is a prototype"  # torch's own warning, once per process


class HostWaits:
    """Implicit waits by ``torch.cuda.set_sync_debug_mode("warn")``, which is set for a while; all
    other warnings pass through. If the script has set a mode, it stays and nothing is counted.
    Waits that the script asks for by name, which that mode does not report, by patches."""

    def __init__(self, patches: Patches) -> None:
        self.patches = patches
        self.on = False
        self.lines: dict[tuple[Any, ...], int] = {}
        self.asked: dict[tuple[Any, ...], int] = {}
        self.seen = False

    def start(self) -> None:
        if accelerator.kind() != "cuda":  # no other kind warns
            return
        for owner in (torch.cuda, torch.cuda.Stream, torch.cuda.Event):
            self._watch(owner)
        if torch.cuda.get_sync_debug_mode() or warns_elsewhere():
            return
        with warnings.catch_warnings():  # an error where the script makes all warnings errors
            warnings.filterwarnings("ignore", message=PROTOTYPE)
            torch.cuda.set_sync_debug_mode("warn")
        self.on = self.seen = True
        self.show = warnings.showwarning
        warnings.filterwarnings("always", message=f".*{MESSAGE}")
        self.filter = warnings.filters[0]
        warnings.showwarning = self._show

    def stop(self) -> None:
        if not self.on:
            return
        self.on = False
        torch.cuda.set_sync_debug_mode("default")
        if warnings.showwarning == self._show:
            warnings.showwarning = self.show
        if self.filter in warnings.filters:
            warnings.filters.remove(self.filter)  # type: ignore[attr-defined]

    def report(self) -> dict[str, Any]:
        """``syncs``: ``[[location, times], …]``, None if they were not counted; ``synchronized``:
        the same of the waits by name."""
        described = [
            [[list(place) or None, n] for place, n in lines.items()]
            for lines in (self.lines, self.asked)
        ]
        return {"syncs": described[0] if self.seen else None, "synchronized": described[1]}

    def _watch(self, owner: Any) -> None:
        original: Any = owner.synchronize

        @functools.wraps(original)
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            if sys._getframe(1).f_code.co_filename != accelerator.__file__:  # tdiag's own
                place = tuple(places.caller() or ())
                self.asked[place] = self.asked.get(place, 0) + 1
            return original(*args, **kwargs)

        self.patches.set(owner, "synchronize", hidden(synchronize))

    def _show(self, message: Any, *args: Any, **kwargs: Any) -> None:
        if MESSAGE not in str(message):
            self.show(message, *args, **kwargs)
            return
        place = tuple(places.caller() or ())
        self.lines[place] = self.lines.get(place, 0) + 1


def warns_elsewhere() -> bool:
    """Whether gloo sends tensors of the device: its threads read them, and have no Python that
    would take the warning, which then goes to stderr."""
    distributed = sys.modules.get("torch.distributed")
    try:
        return bool(
            distributed
            and distributed.is_available()
            and distributed.is_initialized()
            and "cuda:gloo" in distributed.get_backend_config()
        )
    except Exception:  # torch's own bookkeeping, which has changed before
        return True
