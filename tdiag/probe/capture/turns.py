"""Holds the process at step boundaries, so that two live programs can take turns.

Not a profiler, but a clean window that is entered and left many times: the parent says how many
steps a turn has, the probe answers with what they took and waits for the next turn. The talk goes
through two named pipes in ``control/`` (docs/run-directory.md).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

from .. import facts
from ..core import now_ns
from . import Capture

GO, DONE, OWNER = "turns.go", "turns.done", "turns.owner"
# The first step of a turn, with the caches that the other program left; in no clean window.
COLD = "cold"
MOST_OUTSIDE = 5  # foreign modules named; one tells already


class TurnsCapture(Capture):
    """On a device the steps of a turn run ahead of it, so only the turn as a whole, from one
    synchronisation to the next, has a length."""

    def start(self) -> str:
        self.pipes: tuple[int, int] | None = None
        self.durations: list[int] = []
        self.steps = 0  # of this turn
        self.last = 0  # end of the step before, ns
        self.control = os.path.join(self.probe.run_dir, "control")
        owner = os.path.join(self.control, OWNER)
        try:
            os.symlink(str(os.getpid()), owner)  # there is no half-written link
        except FileExistsError:
            if os.readlink(owner) != str(os.getpid()):
                return "another process of this program takes the turns"
        return ""

    def begin(self) -> None:
        # Not to wait for a parent that died meanwhile: without it, the one is at its end at once
        # and the other cannot be opened (a fault, after which the program runs on).
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        done = os.open(os.path.join(self.control, DONE), os.O_WRONLY | flags)
        go = os.open(os.path.join(self.control, GO), os.O_RDONLY | flags)
        for pipe in (go, done):
            os.set_blocking(pipe, True)
        self.pipes = go, done
        self._hold(
            {
                "ready": now_ns(),
                "step": self.probe.step,
                "world_size": facts.env_int("WORLD_SIZE", 1),
                "outside": _modules_below(self.probe.config.get("outside") or ""),
            }
        )

    def step(self) -> None:
        if self.pipes is None:
            return
        now = self.probe.marks.start  # where the step that now begins begins
        if self.probe.windows.name == COLD:
            self.probe.windows.name = self.window.name
            self.last = _synchronised() or now
            return
        self.durations.append(now - self.last)
        self.last = now
        if len(self.durations) < self.steps:
            return
        turn = self.durations
        if end := _synchronised():
            turn = [(sum(turn) + end - now) // len(turn)]
        self._hold({"turn": turn})

    def end(self, steps: int) -> None:
        self.abort()

    def abort(self) -> None:
        pipes, self.pipes = self.pipes, None
        for pipe in pipes or ():
            os.close(pipe)

    def _hold(self, message: dict[str, Any]) -> None:
        """Tell it, and wait to be let go. A parent that is gone ends the program."""
        assert self.pipes is not None
        self.probe.recorder.flush()
        go, done = self.pipes
        os.write(done, json.dumps(message).encode() + b"\n")
        words = os.read(go, 64).split()
        windows = self.probe.windows
        windows.changed = True  # the wait is in no step
        if words[:1] == [b"go"]:
            self.steps, self.durations = int(words[1]), []
            windows.name = COLD
        else:
            windows.name = self.window.name
            windows.stop.asked = True
            windows.finish("asked")


def _synchronised() -> int:
    """Wait for the device, and say when it was done (ns); 0 without one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        return now_ns()
    return 0


def _modules_below(folder: str) -> list[str]:
    """Files of imported modules in ``folder``, those of an environment that lies in it apart."""
    if not folder:
        return []
    found = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        path = os.path.realpath(file) if isinstance(file, str) else ""
        if path.startswith(folder + os.sep) and not path.startswith(sys.prefix + os.sep):
            found.append(path)
    return sorted(found)[:MOST_OUTSIDE]
