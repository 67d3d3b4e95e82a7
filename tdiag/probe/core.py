"""The core of the probe: the state that all its parts share, its guard, and the end of a step."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from .patches import Patches
from .record import Marks, Recorder, wall_ns
from .wire import CONFIG, STEP_END, STEPS, WARMUP

F = TypeVar("F", bound=Callable[..., Any])

MOST_FAILURES = 20  # recorded per process; after that the fault is permanent and not recorded


class Probe:
    """Shared by all parts of the probe in one process; knows none of them.

    ``window``: the name of the window of the current step. ``leads``: only the first of several
    ranks goes through the windows.
    """

    def __init__(self, run_dir: str, started_ns: int = 0, import_ns: int = 0) -> None:
        """``started_ns``: Python was about to run the program; ``import_ns``: to import torch."""
        self.run_dir = run_dir
        self.started_ns, self.import_ns = started_ns, import_ns
        self.began_ns = now_ns()  # when watching this process began
        with open(os.path.join(run_dir, CONFIG), encoding="utf-8") as file:
            self.config: dict[str, Any] = json.load(file)
        self.recorder = Recorder(run_dir)
        self.patches = Patches()
        self.marks = Marks()
        self.failures = 0
        self.step = 0  # steps ended so far
        self.training = False
        self.profiler_prepared = False  # a torch profiler is between its preparation and its end
        self.window = WARMUP
        self.leads, self.ranks, self.rank = True, 1, 0
        self.warm = False  # modules are no longer discovered
        self.warm_actions: list[Callable[[], None]] = []
        # Whether a trial's changes are in full effect; turns are not measured before.
        self.settled: Callable[[], bool] = lambda: True
        # Called at the end of a step when more than its mark is due, with the time.
        self.between_steps: Callable[[int], None] = lambda now: None
        # Called when the windows are over in a run that goes on.
        self.go_on: Callable[[], Any] = self.detach
        self.finished = False  # the windows are over; children forked from now on are not watched
        # Called with an optimizer that has stepped, while all other hooks rest; None: they do not
        # rest.
        self.count: Callable[[Any], None] | None = None

    def when_warm(self, action: Callable[[], None]) -> None:
        """Run ``action`` when discovery may end."""
        self.warm_actions.append(action)

    def end_discovery(self) -> None:
        """All modules are known now, or will not be needed."""
        if not self.warm:
            self.warm = True
            for action in self.warm_actions:
                action()

    def end_step(self) -> None:
        """A step ends here: write its marks, move the windows on, stop the run if due.

        Raises SystemExit at the end of a ``--profiling`` run, on the training thread, where the
        user's own ``finally`` and ``atexit`` still run. Nothing else leaves this function.
        """
        now, marks = wall_ns(), self.marks
        marks.put((STEP_END, now, 0))
        self.step += 1
        if now >= marks.due_ns:
            self.between_steps(now)
        if marks.fed:
            marks.begin_unclocked()
        else:
            marks.read_cpu_clock()

    def cut_steps(self) -> None:
        """Write the steps since the last cut as one record, in their window."""
        marks, log = self.marks, self.marks.log
        while log and log[-3] != STEP_END:  # marks of a step that the end of the run cut off
            del log[-3:]
        if log:
            count, began, ended = log[::3].count(STEP_END), marks.start, log[-2]
            first = self.step - count
            line = STEPS % (first, count, began, ended, self.window, marks.cut(ended))
            self.recorder.lines.append(line)

    def guard(self, function: F) -> F:
        """``function`` as one that never raises: a fault is recorded and None returned."""

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                self.failed(getattr(function, "__qualname__", "?"), error)
                return None

        return guarded  # type: ignore[return-value]

    def failed(self, where: str, error: BaseException) -> None:
        """Record a fault of the probe itself; it is not raised."""
        self.failures += 1
        if self.failures <= MOST_FAILURES:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            what = f"{type(error).__name__}: {error}"
            if trace is not None:
                name = os.path.basename(trace.tb_frame.f_code.co_filename)
                what += f" ({name}:{trace.tb_lineno})"
            self.recorder.write("failure", where=where, what=what)

    def detach(self) -> None:
        """The evidence is complete and the run goes on: leave, so that it runs at full speed."""
        self.finished, self.count = True, None
        self.end_discovery()
        self.patches.undo()
        self.marks.unwatch_gc()
        self.marks.never()  # a wrapper may still be referenced somewhere
        self.recorder.flush()

    def after_fork(self) -> None:
        self.marks.thread = -1 if self.finished else None
        self.count = None
        self.marks.due_ns = 0
        self.began_ns = now_ns()
        self.marks.log.clear()
        self.recorder.forget_parent()
        self.training = False


def now_ns() -> int:
    """The one clock of every event: CLOCK_MONOTONIC, common to all processes of a machine."""
    return time.perf_counter_ns()
