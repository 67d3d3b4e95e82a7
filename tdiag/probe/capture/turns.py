"""Holds the process at step boundaries, so that two live programs can run in turns.

This is not a profiler but a clean window that is entered and left many times: the parent says how
many steps a turn has, the probe answers with their times and waits for the next turn. Messages go
through named pipes in ``control/`` (docs/run-directory.md).

The ranks of a distributed job are held at the same step, which rank 0 announces some steps before:
from then on they all count the same steps, so no rank waits in a collective for one that is held.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

from .. import accelerator, facts
from ..boundary import BATCH
from ..control import Agreement
from ..core import now_ns
from ..wire import COLD, CONTROL, TURNS_DONE, TURNS_HOLD, TURNS_OWNER, turns_go
from .switched import Capture

MOST_OUTSIDE = 3  # foreign modules to name; one is enough to show it


class TurnsCapture(Capture):
    """On a device the host runs ahead during a turn, so only the turn as a whole, from one
    synchronisation to the next, has a duration."""

    def start(self) -> str:
        self.pipes: tuple[int, int] | None = None
        self.agreement = Agreement(self.probe, TURNS_HOLD)
        self.durations: list[int] = []
        self.steps = 0  # steps of this turn
        self.last = 0  # end of the step before, ns
        self.control = os.path.join(self.probe.run_dir, CONTROL)
        self.rank, self.world, self.local = facts.ranks()
        if self.rank:
            return ""
        owner = os.path.join(self.control, TURNS_OWNER)
        try:
            os.symlink(str(os.getpid()), owner)  # a link is never half-written
        except FileExistsError:
            if os.readlink(owner) != str(os.getpid()):
                return "another process of this program is measured"
        return ""

    def ready(self) -> bool:
        """Whether ranks keep step: only while they train, not in an evaluation of each rank's own
        share."""
        keep_step = self.world == 1 or self.boundary.rank > BATCH
        return keep_step and self.probe.settled()

    def begin(self) -> None:
        if self.world == 1:
            self._hold_first()
        elif self.rank == 0:
            self._announce()

    def step(self) -> None:
        if self.pipes is None:
            if self._reached():
                self._hold_first(apart=self.probe.step - (self.agreement.at or 0))
            return
        now = self.probe.marks.start  # the begin of the step that starts now
        if self.probe.window == COLD:
            self.probe.window = self.window.name
            self.last = accelerator.synchronised() or now
            return
        self.durations.append(now - self.last)
        self.last = now
        if len(self.durations) < self.steps:
            return
        turn = self.durations
        if end := accelerator.synchronised():
            turn = [(sum(turn) + end - now) // len(turn)]
        self._tell(self.pipes[1], {"turn": turn})
        self._wait()

    def end(self, steps: int) -> None:
        self.abort()

    def abort(self) -> None:
        pipes, self.pipes = self.pipes, None
        for pipe in pipes or ():
            os.close(pipe)
        if self.rank == 0:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.control, TURNS_HOLD))

    def _announce(self) -> None:
        """Announce where all ranks are held first, and make the pipes that release the others."""
        for rank in range(1, self.world):
            with contextlib.suppress(FileExistsError):
                os.mkfifo(os.path.join(self.control, turns_go(rank)), 0o600)
        self.agreement.ask()

    def _reached(self) -> bool:
        if self.rank and self.agreement.at is None:
            self.agreement.look()
        return self.agreement.reached()

    def _hold_first(self, apart: int = 0) -> None:
        """``apart``: steps beyond the announced one."""
        # Do not wait for a parent that has died: without it, the one pipe is at its end at
        # once and the other cannot be opened (a fault, after which the program runs on).
        alone = os.O_NONBLOCK if self.rank == 0 else 0  # the parent hears of the others' first
        done = os.open(
            os.path.join(self.control, TURNS_DONE), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )
        os.set_blocking(done, True)
        message: dict[str, Any] = {"ready": now_ns(), "step": self.probe.step}
        message.update(world_size=self.world, local=self.local, pid=os.getpid(), outside=[])
        message["device"] = accelerator.kind()
        if self.rank == 0:
            message["outside"] = _modules_below(self.probe.config.get("outside") or "")
        if apart:
            message["apart"] = apart
        self._tell(done, message)
        go = os.open(
            os.path.join(self.control, turns_go(self.rank)), os.O_RDONLY | os.O_CLOEXEC | alone
        )
        os.set_blocking(go, True)
        self.pipes = go, done
        self._wait()

    def _tell(self, done: int, message: dict[str, Any]) -> None:
        self.probe.recorder.flush()
        os.write(done, json.dumps({"rank": self.rank, **message}).encode() + b"\n")

    def _wait(self) -> None:
        """Wait until released. If the parent is gone, the program ends."""
        assert self.pipes is not None
        words = os.read(self.pipes[0], 64).split()
        windows = self.windows
        windows.changed = True  # the wait belongs to no step
        if words[:1] == [b"go"]:
            self.steps, self.durations = int(words[1]), []
            self.probe.window = COLD
        else:
            self.probe.window = self.window.name
            self.probe.ranks = 1  # all ranks are held at this step, so no agreement is needed
            windows.stop.asked = True
            windows.finish("asked")


def _modules_below(folder: str) -> list[str]:
    """Files of imported modules in ``folder``, except those of an environment inside it."""
    if not folder:
        return []
    found = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        path = os.path.realpath(file) if isinstance(file, str) else ""
        if path.startswith(folder + os.sep) and not path.startswith(sys.prefix + os.sep):
            found.append(path)
    return sorted(found)[:MOST_OUTSIDE]
