"""System calls: strace from beside the process, which stops it at each of them."""

from __future__ import annotations

import os

from ..core import now_ns
from . import Capture
from .sample import touch

ANSWER_WITHIN_NS = 8_000_000_000


class SyscallsCapture(Capture):
    """Asks the parent for strace through ``control/``. Refused, its steps pass unwatched."""

    slow_start = True

    def start(self) -> str:
        name = f"syscalls-{os.getpid()}-{self.window.number}"
        self.base = os.path.join(self.probe.run_dir, "control", name)
        self.asked_ns = now_ns()
        touch(self.base + ".want")
        return ""

    def ready(self) -> bool:
        try:
            with open(self.base + ".state", encoding="utf-8") as file:
                state = file.read().strip()
        except OSError:
            state = ""
        if not state and now_ns() - self.asked_ns > ANSWER_WITHIN_NS:
            state = "refused: strace gave no sign within 8 s"
        if state and not state.startswith("attached"):
            self.lost = state[len("refused: ") :] if state.startswith("refused: ") else state
        return bool(state)

    def end(self, steps: int) -> None:
        touch(self.base + ".stop")
        if self.lost:
            self.skipped(self.lost)
        else:
            self.probe.recorder.write("syscalls", steps=steps, **{"pass": self.window.number})

    def abort(self) -> None:
        touch(self.base + ".stop")
