"""Records when the training thread starts processes of the script's own: feeders, pools. A
DataLoader's workers are recorded with it."""

from __future__ import annotations

import functools
import sys
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from . import places
from .patches import RETURNS, hidden
from .record import wall_ns

if TYPE_CHECKING:
    from .core import Probe

MOST_STARTED = 500  # `started` records
_LOADER = "torch/utils/data/dataloader.py"


class ProcessWatch:
    """One per process."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.left = MOST_STARTED

    def install(self) -> None:
        watch, original = self, BaseProcess.start

        @functools.wraps(original)
        def start(self: Any) -> None:
            began = wall_ns()
            original(self)
            watch.probe.guard(watch._started)(began, sys._getframe(1).f_code.co_filename)

        self.probe.patches.set(BaseProcess, "start", hidden(start), RETURNS)

    def _started(self, began: int, by: str) -> None:
        if by.replace("\\", "/").endswith(_LOADER) or self.left <= 0:
            return
        if self.probe.marks.mine() and (place := places.caller()):
            self.left -= 1
            self.probe.recorder.write("started", t=began, at=place)
