"""System calls: strace from outside the process, which it stops at each call."""

from __future__ import annotations

from ..control import Request
from ..wire import REFUSED
from .switched import Capture


class SyscallsCapture(Capture):
    """Asks the parent for strace through ``control/``. If refused, its steps pass unwatched."""

    slow_start = True

    def start(self) -> str:
        self.request = Request(self.probe.run_dir, self.window, "strace")
        self.request.ask()
        return ""

    def ready(self) -> bool:
        self.lost = self.request.refused()
        if self.lost.startswith(REFUSED):
            self.lost = self.lost[len(REFUSED) :]
        return bool(self.lost) or self.request.attached()

    def end(self, steps: int) -> None:
        self.request.end()
        if self.lost:
            self.skipped(self.lost)
        else:
            self.probe.recorder.write("syscalls", steps=steps, **{"pass": self.window.number})

    def abort(self) -> None:
        self.request.end()
