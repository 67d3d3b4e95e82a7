"""All ranks trace the same steps, so that their traces tell who waits for whom.

A rank that alone runs a profiler is slower than the others, which then wait for it. The lead rank
says in ``control/trace-at`` which steps it will trace; the others trace them, too.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .plan import PlannedWindow
from .stop import POLL_NS, STEPS_UNTIL_ALL_STOP
from .wire import CONTROL, TRACE, TRACE_AT

if TYPE_CHECKING:
    from .core import Probe


class Joint:
    """``make_trace``: the capture of a window, with or without Python's stacks."""

    def __init__(self, probe: Probe, make_trace: Callable[[PlannedWindow, bool], Any]) -> None:
        self.probe, self.make_trace = probe, make_trace
        self.file = os.path.join(probe.run_dir, CONTROL, TRACE_AT)
        self.capture: Any = None  # of a rank that follows
        self.at = 0  # all begin when so many steps are done
        self.polled_ns = 0

    def announce(self, number: int, steps: int, stacks: bool, step_ns: float | None) -> None:
        """The lead's: sets ``at``, far enough ahead for all to see it, by the length of a step."""
        if self.probe.ranks == 1:
            return
        ahead = math.ceil(2 * POLL_NS / step_ns) + 2 if step_ns else STEPS_UNTIL_ALL_STOP
        self.at = self.probe.step + ahead
        temporary = f"{self.file}.{os.getpid()}"
        with open(temporary, "w", encoding="ascii") as file:
            json.dump({"pass": number, "at": self.at, "steps": steps, "stacks": stacks}, file)
        os.replace(temporary, self.file)

    def follow(self, now: int) -> bool:
        """Another rank's, at each boundary. Returns whether that took time."""
        if self.capture is None:
            if now - self.polled_ns < POLL_NS:
                return False
            self.polled_ns = now
            return self._look()
        done = self.probe.step - self.at
        if done > 0:
            self.capture.step()
        if done == 0:
            self.capture.begin()
        elif done >= self.capture.window.steps:
            capture, self.capture = self.capture, None
            self.probe.guard(capture.end)(done)
        else:
            return False
        return True

    def leave(self) -> None:
        """Drop what is under way."""
        capture, self.capture = self.capture, None
        if capture is not None:
            self.probe.guard(capture.abort)()

    def _look(self) -> bool:
        """Whether the lead has announced a trace that this rank is now ready for."""
        try:
            with open(self.file, encoding="ascii") as file:
                told = json.load(file)
        except (OSError, ValueError):
            return False
        if told["at"] == self.at:
            return False
        self.at = told["at"]
        window = PlannedWindow(TRACE, told["pass"], told["steps"], 0.0, math.inf)
        capture = self.make_trace(window, told["stacks"])
        why = "it was told too late" if self.probe.step >= self.at else capture.start()
        if why:
            capture.skipped(why)
        else:
            self.capture = capture
        return True
