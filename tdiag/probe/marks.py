"""The time marks of the steps in progress, on the training thread.

Codes and arguments are the table in ``docs/run-directory.md``. Each mark costs the training a
few microseconds with cold caches, so wrappers append to one flat list, and a batch of steps
becomes a record at once (:meth:`Marks.cut`).
"""

from __future__ import annotations

import _thread
import gc
import threading
import time

from .wire import GC_BEGIN, GC_END, ON_CPU

SEND_AGAIN_S = 0.005  # long enough for the callback to have returned
# A young-generation collection takes a few microseconds and happens many times a step; only
# pauses that a person could care about are kept (1 % of a 5 ms step).
SHORT_GC_NS = 50_000
# A step as long as a whole evaluation of a big data set stays bounded: of the pairs that may come
# without number (batches, forwards) none is taken up beyond 100,000 marks, 12 MB.
MOST_VALUES = 300_000

wall_ns = time.perf_counter_ns
_cpu = time.thread_time_ns
here = threading.get_ident


class Marks:
    """``log``: flat threes (code, absolute wall ns, argument), ``put``: appends one such tuple.

    What every step asks for lies here, together: with cold caches each object is a wait."""

    __slots__ = ("clocked", "cpu_start", "due_ns", "fed", "gc_began", "log", "put", "start",
                 "thread")  # fmt: skip

    def __init__(self) -> None:
        self.thread: int | None = None
        self.log: list[int] = []
        self.put = self.log.extend
        self.due_ns = 0  # from then on the end of a step is more than a mark
        self.fed = False  # a loader handed out a batch since the last step
        self.clocked = False  # the thread's CPU clock was read when this step began
        self.cpu_start = 0
        self.gc_began = 0
        self.start = wall_ns()  # when the first step of the log began

    def mine(self) -> bool:
        """True on the training thread; the first thread to ask becomes it."""
        if self.thread is None:
            self.thread = here()
        return self.thread == here()

    def never(self) -> None:
        """This process does not train: from now on no thread of it is the training thread."""
        self.thread = -1
        self.log.clear()

    def read_cpu_clock(self) -> None:
        """A step begins without a loader's batch: only the thread's CPU clock tells whether the
        making of its batch waits or works. A system call, ten times dearer than the wall."""
        self.clocked = True
        self.cpu_start = _cpu()

    def made_by_hand(self) -> None:
        """The step's first forward begins: what came before it made the batch."""
        self.clocked = False
        self.put((ON_CPU, _cpu() - self.cpu_start, 0))

    def cut(self, now: int) -> list[int]:
        """The log up to ``now``, a step boundary; a new one begins there."""
        values = self.log.copy()
        self.log.clear()
        self.start = now
        return values

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
            self.put((GC_BEGIN, self.gc_began, info["generation"]))
            self.put((GC_END, now, info["generation"]))

    def watch_gc(self) -> None:
        gc.callbacks.append(self.on_gc)

    def unwatch_gc(self) -> None:
        if self.on_gc in gc.callbacks:
            gc.callbacks.remove(self.on_gc)
