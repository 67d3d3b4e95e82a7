"""What processes agree on through files in ``control/``: when to stop, which steps all ranks trace,
and which of the parent's tools attaches."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import accelerator
from .collectives import leave_groups
from .plan import PlannedWindow
from .wire import (
    ANSWER_WITHIN_S,
    ATTACHED,
    CONTROL,
    FINISH,
    KERNEL,
    RANK,
    REFUSED,
    STATE,
    STOP,
    STOP_AT,
    TRACE,
    TRACE_AT,
    VISIT,
    WANT,
    request,
)

if TYPE_CHECKING:
    from .core import Probe


POLL_NS = 200_000_000  # a stat() with cold caches takes 30 µs on a slow core
# Steps from the furthest rank to the agreed step: by then all ranks have read it.
STEPS_UNTIL_ALL_STOP = 8
# A script that catches BaseException in its loop would never end.
SWALLOWED_BEFORE_FORCE = 3
DETACH = -1  # instead of a step: leave, do not stop


class Agreement:
    """A step that is still ahead of every rank of the job, at whose end all do the same thing.

    Ranks that wait for each other at each step are at most one step apart. On a device a host may
    be a thousand launches ahead of it, and so of the other hosts. So the lead asks first. Each rank
    answers with the steps it has ended, and from then on waits for its device at every step, which
    keeps all ranks together, until the lead has all answers and announces the step.

    A message older than this process comes from ranks that are gone: a launcher restarted them, or
    a script started the next job.
    """

    def __init__(self, probe: Probe, name: str) -> None:
        self.probe = probe
        self.file = os.path.join(probe.run_dir, CONTROL, name)
        self.question: dict[str, Any] | None = None  # the lead's question, until it is withdrawn
        self.at: int | None = None  # the agreed step
        self.answered = self.taken = 0  # ids of questions
        self.open = False  # answered, but not yet agreed

    def ask(self, at: int | None = None, **message: Any) -> None:
        """For the lead. ``message``: what the others need to know; ``at``: the step, if no rank is
        asked."""
        self.at = at
        self.question = {"id": time.perf_counter_ns(), "at": at, **message}
        _write(self.file, self.question)

    def reached(self) -> bool:
        """For the lead, at each boundary: whether the agreed step has ended."""
        if self.question is not None and self.at is None:
            self._settle(self.question)
        return self.at is not None and self.probe.step >= self.at

    def withdraw(self) -> None:
        """For the lead: cancel the question."""
        if self.question is not None and self.at is None:
            with contextlib.suppress(OSError):
                os.unlink(self.file)
        self.question = self.at = None

    def look(self) -> dict[str, Any] | None:
        """For other ranks, at each boundary: the lead's message, once, when the step is agreed."""
        message = _read(self.file)
        if message is not None and message["id"] < self.probe.began_ns:
            message = None
        self.open = message is not None and message["at"] is None
        if message is None or message["id"] == self.taken:
            return None
        if self.open:
            accelerator.synchronised()
            if self.answered != message["id"]:
                self.answered = message["id"]
                answer = {"id": message["id"], "step": self.probe.step}
                _write(f"{self.file}.{self.probe.rank}", answer)
            return None
        self.taken, self.at = message["id"], message["at"]
        return message

    def _settle(self, question: dict[str, Any]) -> None:
        accelerator.synchronised()
        asked = [rank for rank in range(1, self.probe.ranks) if arrived(self.probe, rank)]
        found = (_read(f"{self.file}.{rank}") for rank in asked)
        answers = [answer["step"] for answer in found if answer and answer["id"] == question["id"]]
        # A rank that never answers makes no steps.
        late = time.perf_counter_ns() - question["id"] > ANSWER_WITHIN_S * 1e9
        if len(answers) == len(asked) or late:
            self.at = max(self.probe.step, *answers, 0) + STEPS_UNTIL_ALL_STOP
            _write(self.file, {**question, "at": self.at})


def _write(file: str, message: dict[str, Any]) -> None:
    """Write atomically."""
    temporary = f"{file}.{os.getpid()}.part"
    with open(temporary, "w", encoding="ascii") as part:
        json.dump(message, part)
    os.replace(temporary, file)


def _read(file: str) -> dict[str, Any] | None:
    try:
        with open(file, encoding="ascii") as found:
            message: dict[str, Any] = json.load(found)
    except (OSError, ValueError):
        return None
    return message


def arrive(probe: Probe) -> None:
    """Tell rank 0 that this rank sees the run directory; ranks on other machines may not."""
    _write(os.path.join(probe.run_dir, CONTROL, f"{RANK}{probe.rank}"), {"pid": os.getpid()})


def arrived(probe: Probe, rank: int) -> bool:
    """Whether this rank sees the run directory and lives; it may be a rank of an earlier job."""
    message = _read(os.path.join(probe.run_dir, CONTROL, f"{RANK}{rank}"))
    return message is not None and os.path.exists(f"/proc/{message['pid']}")


class StopSign:
    """The limits of the run, the parent's request, and the agreement of several ranks."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.why = ""
        self.asked = False
        self.agreement = Agreement(probe, STOP_AT)
        self.polled_ns = 0
        self.tries = 0
        self.steps = probe.config.get("steps")
        self.budget_ns = float(probe.config.get("time_budget_s") or 1e9) * 1e9
        self.parent_file = os.path.join(probe.run_dir, CONTROL, FINISH)

    def due(self, now: int, first: int, steps: int) -> bool:
        """Whether to stop watching at this boundary, ``steps`` after the ``first``. Sets ``why``.

        The time budget ends with the step that ends closest to it.
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
        """Whether the run itself should end, not only the watching."""
        if self.probe.config.get(VISIT):
            return False
        return bool(self.probe.config["profiling"]) or self.asked

    def arrange(self) -> None:
        """All ranks stop at the same step, so that none waits for ever. If one does not see the run
        directory (on another machine), none stops, because it would fail without the others."""
        if self.probe.ranks > 1 and self.probe.leads:
            absent = sum(not arrived(self.probe, rank) for rank in range(1, self.probe.ranks))
            self.agreement.ask(at=None if self.wanted() and not absent else DETACH)
            if self.wanted() and absent:
                self.probe.recorder.write("unstopped", t=time.perf_counter_ns(), absent=absent)

    def now(self) -> bool:
        """Whether to end the run at this very boundary."""
        if not self.wanted():
            return False
        if self.probe.ranks > 1 and self.agreement.at == DETACH:
            self.probe.detach()
            return False
        return self.probe.ranks == 1 or self.agreement.reached()

    def stop(self) -> None:
        """End the run: by SystemExit, or by SIGTERM if the script swallows that."""
        self.tries += 1
        if self.tries == 1:
            self.probe.recorder.write("stop", t=time.perf_counter_ns())
            self.probe.recorder.flush()
            accelerator.synchronised()  # no collective is left behind that other ranks wait for
        if self.tries <= SWALLOWED_BEFORE_FORCE:
            raise SystemExit(0)
        if self.tries == SWALLOWED_BEFORE_FORCE + 1 and not self.probe.config.get(KERNEL):
            self.probe.recorder.write("forced", t=time.perf_counter_ns())
            self.probe.recorder.flush()
            for stream in (sys.stdout, sys.stderr):  # the signal would lose their buffers
                if stream is not None:
                    self.probe.guard(stream.flush)()
            os.kill(os.getpid(), signal.SIGTERM)
        self.probe.detach()  # it ignores that too, so leave it alone

    def at_exit(self) -> None:
        if self.tries:  # the script did not get as far as its own call of it
            self.probe.guard(leave_groups)()

    def _read_shared(self) -> bool:
        if self.agreement.at is None and self.agreement.look() is not None:
            self.asked = self.agreement.at != DETACH
        return self.agreement.at is not None


class Joint:
    """``make_trace``: makes the capture of a window, with or without Python stacks."""

    def __init__(self, probe: Probe, make_trace: Callable[[PlannedWindow, bool], Any]) -> None:
        self.probe, self.make_trace = probe, make_trace
        self.agreement = Agreement(probe, TRACE_AT)
        self.capture: Any = None  # the capture of a rank that follows the lead
        self.polled_ns = 0

    def announce(self, number: int, steps: int, stacks: bool) -> None:
        """For the lead: announce that all ranks trace ``steps`` steps."""
        if self.probe.ranks > 1:
            self.agreement.ask(**{"pass": number, "steps": steps, "stacks": stacks})

    def ready(self) -> bool:
        """For the lead: whether all begin here."""
        return self.probe.ranks == 1 or self.agreement.reached()

    def follow(self, now: int) -> bool:
        """For other ranks, at each boundary. Returns whether that took time."""
        if self.capture is None:
            if not self.agreement.open and now - self.polled_ns < POLL_NS:
                return False
            self.polled_ns = now
            return self._look()
        assert self.agreement.at is not None
        done = self.probe.step - self.agreement.at
        if done > 0:
            self.capture.step()
        if done == 0:
            accelerator.synchronised()
            self.capture.begin()
        elif done >= self.capture.window.steps:
            accelerator.synchronised()
            capture, self.capture = self.capture, None
            self.probe.guard(capture.end)(done)
        else:
            return False
        return True

    def leave(self) -> None:
        """Drop any capture in progress."""
        self.agreement.withdraw()
        capture, self.capture = self.capture, None
        if capture is not None:
            self.probe.guard(capture.abort)()

    def _look(self) -> bool:
        """Whether the lead has announced a trace; starting it took time."""
        message = self.agreement.look()
        if message is None:
            return self.agreement.open
        window = PlannedWindow(TRACE, message["pass"], message["steps"], 0.0, math.inf)
        capture = self.make_trace(window, message["stacks"])
        why = "it was announced too late" if self.probe.step >= message["at"] else capture.start()
        if why:
            capture.skipped(why)
        else:
            self.capture = capture
        return True


class Request:
    """Asks the parent for a tool that attaches to this process; the steps go on without a pause."""

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
            state = f"{REFUSED}{self.tool} did not answer within {ANSWER_WITHIN_S:g} s"
        return "" if state.startswith(ATTACHED) else state

    def end(self) -> None:
        os.close(os.open(self.base + STOP, os.O_WRONLY | os.O_CREAT, 0o600))

    def _state(self) -> str:
        try:
            with open(self.base + STATE, encoding="utf-8") as file:
                return file.read().strip()
        except OSError:
            return ""
