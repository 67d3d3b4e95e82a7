"""What processes agree on through files in ``control/``: when to stop, which steps all ranks trace,
and which tool of the parent's attaches."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import device
from .plan import PlannedWindow
from .wire import (
    ANSWER_WITHIN_S,
    ATTACHED,
    CONTROL,
    FINISH,
    REFUSED,
    STATE,
    STOP,
    STOP_AT,
    TRACE,
    TRACE_AT,
    WANT,
    request,
)

if TYPE_CHECKING:
    from .core import Probe


POLL_NS = 200_000_000  # a stat() with cold caches takes 30 µs on a slow core
# Ranks that synchronise each step are at most one step apart; some slack for the file to be seen.
STEPS_UNTIL_ALL_STOP = 8
# A script that catches BaseException in its loop would never end.
SWALLOWED_BEFORE_FORCE = 3
DETACH = -1  # in place of a step: leave, do not stop


class StopSign:
    """Bounds of the run, the parent's request, and the agreement of several ranks."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.why = ""
        self.asked = False
        self.at: int | None = None
        self.polled_ns = 0
        self.tries = 0
        self.steps = probe.config.get("steps")
        self.budget_ns = float(probe.config.get("time_budget_s") or 1e9) * 1e9
        self.parent_file = os.path.join(probe.run_dir, CONTROL, FINISH)
        self.shared_file = os.path.join(probe.run_dir, CONTROL, STOP_AT)

    def due(self, now: int, first: int, steps: int) -> bool:
        """Stop watching at this boundary, ``steps`` after the ``first``? Sets ``why``.

        The time budget ends with the step that ends nearest to it.
        """
        half_a_step = (now - first) / steps / 2 if steps else 0.0
        leads = self.probe.leads
        if not leads and self._read_shared():
            self.why = "asked"
        elif now - self.polled_ns > POLL_NS:
            self.polled_ns = now
            if leads and os.path.exists(self.parent_file):
                self.why, self.asked = "asked", True
        if not self.why and leads:
            if self.steps is not None and self.probe.step >= self.steps:
                self.why = "steps"
            elif now - first + half_a_step > self.budget_ns:
                self.why = "time"
        return bool(self.why)

    def wanted(self) -> bool:
        """The run itself is to end, not only the watching."""
        return bool(self.probe.config["profiling"]) or self.asked

    def arrange(self) -> None:
        """The lead rank tells the others at which step all stop, so that none waits for ever."""
        if self.probe.ranks > 1 and self.probe.leads:
            self.at = self.probe.step + STEPS_UNTIL_ALL_STOP
            temporary = f"{self.shared_file}.{os.getpid()}"
            with open(temporary, "w", encoding="ascii") as file:
                file.write(str(self.at if self.wanted() else DETACH))
            os.replace(temporary, self.shared_file)

    def now(self) -> bool:
        """End the run at this very boundary?"""
        return self.wanted() and (self.at is None or self.probe.step >= self.at)

    def stop(self) -> None:
        """End the run: by SystemExit, or by SIGTERM where the script swallows that."""
        self.tries += 1
        if self.tries == 1:
            self.probe.recorder.write("stop", t=time.perf_counter_ns())
            self.probe.recorder.flush()
        if self.tries <= SWALLOWED_BEFORE_FORCE:
            raise SystemExit(0)
        if self.tries == SWALLOWED_BEFORE_FORCE + 1:
            self.probe.recorder.write("forced", t=time.perf_counter_ns())
            self.probe.recorder.flush()
            for stream in (sys.stdout, sys.stderr):  # the signal would lose what they hold
                if stream is not None:
                    self.probe.guard(stream.flush)()
            os.kill(os.getpid(), signal.SIGTERM)
        self.probe.detach()  # it ignores that too: leave it alone

    def _read_shared(self) -> bool:
        if self.at is None:
            try:
                with open(self.shared_file, encoding="ascii") as file:
                    self.at = int(file.read())
            except (OSError, ValueError):
                return False
            self.asked = self.at != DETACH
        return True


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
            device.synchronised()
            self.capture.begin()
        elif done >= self.capture.window.steps:
            device.synchronised()
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


class Request:
    """Asks the parent for a tool that attaches to this process; no pause, the steps go on."""

    def __init__(self, run_dir: str, window: PlannedWindow, tool: str) -> None:
        name = request(window.name, os.getpid(), window.number)
        self.base = os.path.join(run_dir, CONTROL, name)
        self.tool = tool
        self.asked_ns = 0

    def ask(self, root: str = "") -> None:
        """``root``: the process to attach to, if not this one."""
        self.asked_ns = time.perf_counter_ns()
        part = self.base + ".part"
        with open(part, "w", encoding="ascii") as file:
            file.write(root)
        os.replace(part, self.base + WANT)

    def attached(self) -> bool:
        return self._state().startswith(ATTACHED)

    def refused(self) -> str:
        """Why the tool does not attach; empty as long as it still may."""
        state = self._state()
        if not state and time.perf_counter_ns() - self.asked_ns > ANSWER_WITHIN_S * 1e9:
            state = f"{REFUSED}{self.tool} gave no sign within {ANSWER_WITHIN_S:g} s"
        return "" if state.startswith(ATTACHED) else state

    def end(self) -> None:
        os.close(os.open(self.base + STOP, os.O_WRONLY | os.O_CREAT, 0o600))

    def _state(self) -> str:
        try:
            with open(self.base + STATE, encoding="utf-8") as file:
                return file.read().strip()
        except OSError:
            return ""
