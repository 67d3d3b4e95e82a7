"""Names the user lines that make the device synchronise, through torch's own warnings."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from .. import places

MESSAGE = "called a synchronizing CUDA operation"


class SyncWarnings:
    """``torch.cuda.set_sync_debug_mode("warn")`` for a while; every other warning passes on."""

    def __init__(self) -> None:
        self.on = False
        self.lines: dict[tuple[Any, ...], int] = {}
        self.seen = False

    def start(self) -> None:
        if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return
        self.on = self.seen = True
        self.mode = torch.cuda.get_sync_debug_mode()
        self.show = warnings.showwarning
        warnings.filterwarnings("always", message=f".*{MESSAGE}")
        self.filter = warnings.filters[0]
        warnings.showwarning = self._show
        torch.cuda.set_sync_debug_mode("warn")

    def stop(self) -> None:
        if not self.on:
            return
        self.on = False
        torch.cuda.set_sync_debug_mode(self.mode)
        if warnings.showwarning == self._show:
            warnings.showwarning = self.show
        if self.filter in warnings.filters:
            warnings.filters.remove(self.filter)  # type: ignore[attr-defined]

    def counts(self) -> list[list[Any]] | None:
        """``[[location, times], …]``; None where there is no device to synchronise."""
        if not self.seen:
            return None
        return [[list(place) or None, n] for place, n in self.lines.items()]

    def _show(self, message: Any, *args: Any, **kwargs: Any) -> None:
        if MESSAGE not in str(message):
            self.show(message, *args, **kwargs)
            return
        place = tuple(places.caller() or ())
        self.lines[place] = self.lines.get(place, 0) + 1
