"""When the watching, and with ``--profiling`` the run, has to stop."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from .wire import CONTROL, FINISH, STOP_AT

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
