"""System calls: strace from beside the process, which stops it at each of them."""

from __future__ import annotations

import os

from ..core import now_ns
from ..wire import ANSWER_WITHIN_S, ATTACHED, CONTROL, REFUSED, STATE, STOP, SYSCALLS, WANT, request
from .base import Capture
from .sample import touch


class SyscallsCapture(Capture):
    """Asks the parent for strace through ``control/``. Refused, its steps pass unwatched."""

    slow_start = True

    def start(self) -> str:
        name = request(SYSCALLS, os.getpid(), self.window.number)
        self.base = os.path.join(self.probe.run_dir, CONTROL, name)
        self.asked_ns = now_ns()
        touch(self.base + WANT)
        return ""

    def ready(self) -> bool:
        try:
            with open(self.base + STATE, encoding="utf-8") as file:
                state = file.read().strip()
        except OSError:
            state = ""
        if not state and now_ns() - self.asked_ns > ANSWER_WITHIN_S * 1e9:
            state = f"{REFUSED}strace gave no sign within {ANSWER_WITHIN_S:g} s"
        if state and not state.startswith(ATTACHED):
            self.lost = state[len(REFUSED) :] if state.startswith(REFUSED) else state
        return bool(state)

    def end(self, steps: int) -> None:
        touch(self.base + STOP)
        if self.lost:
            self.skipped(self.lost)
        else:
            self.probe.recorder.write("syscalls", steps=steps, **{"pass": self.window.number})

    def abort(self) -> None:
        touch(self.base + STOP)
