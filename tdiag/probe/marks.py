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

_wall = time.perf_counter_ns
_cpu = time.thread_time_ns


class Marks:
    """Flat fours: code, wall ns and thread CPU ns since the step began, argument."""

    __slots__ = ("cpu_start", "forward_seen", "start", "thread", "values")

    def __init__(self) -> None:
        self.thread: int | None = None
        self.values: list[int] = []
        self.forward_seen = False  # since the last batch: only the first ends "prepare"
        self.start = _wall()
        self.cpu_start = _cpu()

    def mine(self) -> bool:
        """True on the training thread; the first thread to ask becomes it."""
        here = threading.get_ident()
        if self.thread is None:
            self.thread = here
        return self.thread == here

    def never(self) -> None:
        """This process does not train: from now on no thread of it is the training thread."""
        self.thread = -1
        self.values = []

    def add(self, code: int, argument: int = 0) -> None:
        if len(self.values) < MOST_VALUES:
            # The thread's CPU clock is a system call, fifteen times dearer than the wall clock.
            dear = code < FORWARD_BEGIN or (code == FORWARD_BEGIN and not self.forward_seen)
            cpu = _cpu() - self.cpu_start if dear else UNMEASURED
            self.forward_seen = code == FORWARD_BEGIN or (self.forward_seen and not dear)
            self.values += (code, _wall() - self.start, cpu, argument)

    def take(self) -> tuple[int, list[int]]:
        """End the step here: its end time (absolute ns) and its marks; a new one begins."""
        now, values = _wall(), self.values
        self.values = []
        self.forward_seen = False
        self.start, self.cpu_start = now, _cpu()
        return now, values

    def on_gc(self, phase: str, info: dict[str, int]) -> None:
        """A ``gc.callbacks`` entry. Python swallows what is raised in one, so a Ctrl-C that
        happens to be delivered here is sent once more."""
        try:
            if threading.get_ident() == self.thread:
                self._collected(phase, info)
        except KeyboardInterrupt:
            again = threading.Timer(SEND_AGAIN_S, _thread.interrupt_main)
            again.daemon = True
            again.start()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.add(GC_BEGIN, info["generation"])
            return
        values = self.values
        began = len(values) >= 4 and values[-4] == GC_BEGIN
        if began and _wall() - self.start - values[-3] < SHORT_GC_NS:
            del values[-4:]
        else:
            self.add(GC_END, info["generation"])

    def watch_gc(self) -> None:
        gc.callbacks.append(self.on_gc)

    def unwatch_gc(self) -> None:
        if self.on_gc in gc.callbacks:
            gc.callbacks.remove(self.on_gc)
