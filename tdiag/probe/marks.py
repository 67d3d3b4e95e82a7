"""The time marks of the step in progress, on the training thread.

Codes and arguments are the table in ``docs/run-directory.md``.
"""

from __future__ import annotations

import _thread
import gc
import threading
import time

NEXT_BEGIN, NEXT_END = 0, 1
FORWARD_BEGIN, FORWARD_END = 2, 3
BACKWARD_BEGIN, BACKWARD_END = 4, 5
OPTIMIZER_BEGIN, OPTIMIZER_END = 6, 7
SAVE_BEGIN, SAVE_END = 8, 9
GC_BEGIN, GC_END = 10, 11

UNMEASURED = -1
SEND_AGAIN_S = 0.005  # long enough for the callback to have returned
# A young-generation collection takes a few microseconds and happens many times a step; only
# pauses that a person could care about are kept (1 % of a 5 ms step).
SHORT_GC_NS = 50_000
# A step as long as a whole evaluation of a big data set stays bounded: 100,000 marks, 16 MB.
MOST_VALUES = 400_000

wall_ns = time.perf_counter_ns
_cpu = time.thread_time_ns
here = threading.get_ident


class Full(list):  # type: ignore[type-arg]
    """The marks of a step that has had its share: takes no more."""

    def __iadd__(self, more: object) -> Full:  # type: ignore[misc]
        return self


class Marks:
    """Flat fours: code, wall ns and thread CPU ns since the step began, argument."""

    __slots__ = ("clocked", "cpu_start", "fetched", "gc_began", "start", "thread", "values")

    def __init__(self) -> None:
        self.thread: int | None = None
        self.values: list[int] = []
        self.fetched = False  # a loader was asked for a batch in this step
        self.clocked = False  # the thread's CPU clock was read when this step began
        self.gc_began = 0
        self.start = wall_ns()
        self.cpu_start = _cpu()

    def mine(self) -> bool:
        """True on the training thread; the first thread to ask becomes it."""
        if self.thread is None:
            self.thread = here()
        return self.thread == here()

    def never(self) -> None:
        """This process does not train: from now on no thread of it is the training thread."""
        self.thread = -1
        self.values = []

    def add(self, code: int, argument: int = 0) -> None:
        """Something began or ended."""
        self.values += (code, wall_ns() - self.start, UNMEASURED, argument)

    def add_next(self, code: int, argument: int) -> None:
        """A loader's next batch begins or ends."""
        self.fetched = True
        self.clocked = False
        self.values += (code, wall_ns() - self.start, UNMEASURED, argument)
        if len(self.values) > MOST_VALUES:
            self.values = Full(self.values)

    def add_forward(self, argument: int) -> None:
        """Forward begins. The first ends the making of a batch by hand, of which no loader tells
        whether it waits or works: the thread's CPU clock does, a system call, ten times dearer."""
        cpu = UNMEASURED
        if self.clocked:
            self.clocked = False
            cpu = _cpu() - self.cpu_start
        self.values += (FORWARD_BEGIN, wall_ns() - self.start, cpu, argument)
        if len(self.values) > MOST_VALUES:
            self.values = Full(self.values)

    def take(self) -> tuple[int, list[int]]:
        """End the step here: its end time (absolute ns) and its marks; a new one begins."""
        now, values = wall_ns(), self.values
        self.values = []
        self.start = now
        self.clocked = not self.fetched
        if self.clocked:
            self.cpu_start = _cpu()
        self.fetched = False
        return now, values

    def on_gc(self, phase: str, info: dict[str, int]) -> None:
        """A ``gc.callbacks`` entry. Python swallows what is raised in one, so a Ctrl-C that
        happens to be delivered here is sent once more."""
        try:
            if here() == self.thread:
                self._collected(phase, info)
        except KeyboardInterrupt:
            again = threading.Timer(SEND_AGAIN_S, _thread.interrupt_main)
            again.daemon = True
            again.start()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        now = wall_ns()
        if phase == "start":
            self.gc_began = now
        elif now - self.gc_began >= SHORT_GC_NS and self.gc_began >= self.start:
            generation, began = info["generation"], self.gc_began - self.start
            self.values += (GC_BEGIN, began, UNMEASURED, generation)
            self.values += (GC_END, now - self.start, UNMEASURED, generation)

    def watch_gc(self) -> None:
        gc.callbacks.append(self.on_gc)

    def unwatch_gc(self) -> None:
        if self.on_gc in gc.callbacks:
            gc.callbacks.remove(self.on_gc)
