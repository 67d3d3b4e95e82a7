"""The probe of one process: its parts, its guard, and the step boundary."""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from .invisible import install_filter
from .marks import Marks, wall_ns
from .patches import Patches
from .record import Recorder
from .wire import CONFIG, STEP_END, STEPS

F = TypeVar("F", bound=Callable[..., Any])

MOST_FAILURES = 20  # of one process; after that something is wrong for good and stays unsaid


class Probe:
    """Owns everything the probe knows in one process; made when torch has been imported."""

    def __init__(self, run_dir: str, started_ns: int = 0, import_ns: int = 0) -> None:
        """``started_ns``: Python was about to run the program; ``import_ns``: to import torch."""
        self.run_dir = run_dir
        self.started_ns, self.import_ns = started_ns, import_ns
        with open(os.path.join(run_dir, CONFIG), encoding="utf-8") as file:
            self.config: dict[str, Any] = json.load(file)
        self.recorder = Recorder(run_dir)
        self.patches = Patches()
        self.marks = Marks()
        self.failures = 0
        self.step = 0  # steps ended so far
        self.training = False
        self.threads_at: Any = None  # the user's last torch.set_num_threads

    def install(self) -> None:
        """Put every hook in place. A hook that fails to install is recorded and left out."""
        from . import facts
        from .boundary import Boundary
        from .collectives import Collectives
        from .loaders import watch_loaders
        from .looks import Looks
        from .phases import watch_phases
        from .windows import Windows

        install_filter()
        facts.write_process(self)
        self.boundary = Boundary(self)
        self.looks = Looks(self)
        self.windows = Windows(self)
        self._advance = self.guard(self.windows.advance)  # made once: this runs every step
        self.guard(self.boundary.install)()
        self.guard(self.looks.install)()
        self.guard(watch_loaders)(self)
        self.guard(watch_phases)(self)
        self.guard(Collectives(self).install)()
        self.guard(facts.watch_threads)(self)
        self.marks.watch_gc()
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self._at_exit)

    def end_step(self) -> None:
        """A step ends here: write its marks, let the windows move on, stop the run if due.

        Raises SystemExit at the end of a ``--profiling`` run, on the training thread, where the
        user's own ``finally`` and ``atexit`` still run. Nothing else leaves this function.
        """
        now, marks = wall_ns(), self.marks
        marks.put((STEP_END, now, 0))
        self.step += 1
        if now >= marks.due_ns:
            self._between_steps(now)
        if marks.fed:
            marks.fed = marks.clocked = False
        else:
            marks.read_cpu_clock()

    def _between_steps(self, now: int) -> None:
        """More than the marks of a step is due."""
        if not self.training:
            self.guard(self._begin_training)()
        windows = self.windows
        self.cut_steps()
        self.recorder.flush_if_due(now)
        self._advance(now)
        if windows.changed:  # tdiag's own work between two windows is in no step
            windows.changed = False
            self.marks.cut(wall_ns())
        if windows.stop_now:
            windows.stop.stop()

    def cut_steps(self) -> None:
        """The steps since the last cut become one record, of the window that they belong to."""
        marks, log = self.marks, self.marks.log
        while log and log[-3] != STEP_END:  # of a step that the end of the run broke off
            del log[-3:]
        if log:
            count, began, ended = log[::3].count(STEP_END), marks.start, log[-2]
            first, window = self.step - count, self.windows.name
            line = STEPS % (first, count, began, ended, window, marks.cut(ended))
            self.recorder.lines.append(line)

    def guard(self, function: F) -> F:
        """``function`` that never raises: a fault is recorded and None returned."""

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                self.failed(getattr(function, "__qualname__", "?"), error)
                return None

        return guarded  # type: ignore[return-value]

    def failed(self, where: str, error: BaseException) -> None:
        """Record a fault of the probe's own; it goes no further."""
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
        """Evidence complete in a run that goes on: leave, so that it runs at full speed."""
        self.windows.end_discovery()
        self.patches.undo()
        self.marks.unwatch_gc()
        self.marks.never()  # whoever still holds a wrapper
        self.recorder.flush()

    def _begin_training(self) -> None:
        from . import facts

        self.training = True
        facts.allow_sampling()
        facts.write_training(self)

    def _after_fork(self) -> None:
        self.marks.thread = None
        self.marks.due_ns = 0
        self.marks.log.clear()
        self.recorder.forget_parent()
        self.training = False
        self.windows.leave()

    def _at_exit(self) -> None:
        if self.training:
            self.guard(self.windows.finish)("error" if _died() else "exit")
        self.recorder.flush()


def _died() -> bool:
    """An uncaught exception ended the program (Python keeps it for post-mortem debuggers)."""
    return getattr(sys, "last_type", None) is not None


def now_ns() -> int:
    """The one clock of every event: CLOCK_MONOTONIC, common to all processes of a machine."""
    return time.perf_counter_ns()
