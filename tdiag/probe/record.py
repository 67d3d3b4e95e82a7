"""Records what happens in this process, and the time marks of the steps in progress.

One JSON object per line, appended, safe against sudden death. The table in
``docs/run-directory.md`` lists codes and arguments of the marks. Each mark costs the training a few
microseconds with cold caches, so wrappers append to one flat list, and a batch of steps is written
as one record (:meth:`Marks.cut`).
"""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import time
from typing import Any

from .wire import EVENTS, GC_BEGIN, GC_END, GRAD_ON, ON_CPU, RecordKind, events_file

FLUSH_EVERY_NS = 250_000_000  # with stop.POLL_NS, the most that a killed process can lose
FLUSH_EACH_OF_FIRST = 100  # short runs and early crashes lose nothing
_encode = json.JSONEncoder(default=str, separators=(",", ":")).encode


class Recorder:
    """Appends to ``events/<pid>.jsonl``. After a failed write (disk full) it stays silent.

    ``lines``: not yet written.
    """

    def __init__(self, run_dir: str) -> None:
        self.run_dir = run_dir
        self.descriptor: int | None = None
        self.pid = -1
        self.lines: list[str] = []
        self.count = 0
        self.flushed_ns = 0
        self.broken = False

    def write(self, kind: RecordKind, **fields: Any) -> None:
        """Add one record. Values must be JSON-ready; others are written as their ``str``."""
        if self.pid != os.getpid():
            self.forget_parent()
        self.lines.append(_encode({"kind": kind, **fields}))
        self.flush_if_due(time.perf_counter_ns())

    def flush_if_due(self, now: int) -> None:
        self.count += 1
        if now - self.flushed_ns > FLUSH_EVERY_NS or self.count < FLUSH_EACH_OF_FIRST:
            self.flush(now)

    def flush(self, now: int | None = None) -> None:
        if self.broken or not self.lines or self.pid != os.getpid():
            return
        data = ("\n".join(self.lines) + "\n").encode()
        self.lines.clear()
        self.flushed_ns = now or time.perf_counter_ns()
        try:
            if self.descriptor is None:
                path = os.path.join(self.run_dir, events_file(self.pid))
                self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            while data:
                data = data[os.write(self.descriptor, data) :]
        except OSError as error:
            self.broken = True
            self._tell_failure(error)

    def forget_parent(self) -> None:
        """After a fork, drop the parent's unwritten lines and open file."""
        self.pid = os.getpid()
        self.descriptor = None
        self.lines = []
        self.count = 0
        self.broken = False

    def _tell_failure(self, error: OSError) -> None:
        # An empty file needs no data block, so this often works even on a full disk.
        name = f"events-lost-{self.pid}-{error.errno}"
        try:
            path = os.path.join(self.run_dir, EVENTS, name)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError:
            pass


SEND_AGAIN_S = 0.005  # long enough for the callback to have returned
# A young-generation collection takes a few microseconds and happens many times per step; only
# pauses that matter are kept (1 % of a 5 ms step).
SHORT_GC_NS = 50_000
# Limits the marks of a step as long as a whole evaluation of a large data set: pairs that may occur
# any number of times (batches, forwards) are not recorded beyond 100,000 marks, 12 MB.
MOST_VALUES = 300_000

wall_ns = time.perf_counter_ns
_cpu = time.thread_time_ns
here = threading.get_ident


class Marks:
    """``log``: flat threes (code, absolute wall ns, argument), ``put``: appends one such tuple.

    All that every step needs is here in one object, because with cold caches each object costs a
    wait."""

    __slots__ = ("clocked", "cpu_start", "due_ns", "fed", "gc_began", "log", "put", "start",
                 "thread")  # fmt: skip

    def __init__(self) -> None:
        self.thread: int | None = None
        self.log: list[int] = []
        self.put = self.log.extend
        self.due_ns = 0  # from this time on the end of a step does more than a mark
        self.fed = False  # a loader handed out a batch since the last step
        self.clocked = False  # the thread's CPU clock was read when this step began
        self.cpu_start = 0  # the thread's CPU clock then, ns; 0: it was not read
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
        """A step begins without a loader's batch: only the thread's CPU clock shows whether making
        its batch waits or works. A system call, ten times as expensive as reading the wall
        clock."""
        self.clocked = True
        self.cpu_start = _cpu()

    def made_by_hand(self, called: int = 0) -> None:
        """A forward begins that was ``called`` so (``FORWARD_BEGIN``), or ends: the time before the
        step's first one with gradients made the batch. One without is an agent that acts."""
        self.clocked = not called & GRAD_ON
        self.put((ON_CPU, _cpu() - self.cpu_start, 0))

    def interrupted(self) -> None:
        """Something with marks of its own begins or ends while a batch may be made, such as a
        save."""
        if self.clocked:
            self.put((ON_CPU, _cpu() - self.cpu_start, 0))

    def backward_begins(self) -> None:
        """If no module was called, making the batch and the forward lie before it."""
        if self.clocked:
            self.made_by_hand(GRAD_ON)

    def optimizer_ended(self) -> None:
        """An optimizer stepped that ends no step, of a GAN for example: the next batch may be made
        here, by hand."""
        if self.cpu_start and not self.fed:
            self.clocked = True
            self.put((ON_CPU, _cpu() - self.cpu_start, 0))

    def begin_unclocked(self) -> None:
        """A step begins without its CPU clock: a loader feeds the steps, or may."""
        self.fed = self.clocked = False
        self.cpu_start = 0

    def cut(self, now: int) -> list[int]:
        """The log up to ``now``, a step boundary; a new one begins there."""
        values = self.log.copy()
        self.log.clear()
        self.start = now
        return values

    def on_gc(self, phase: str, info: dict[str, int]) -> None:
        """A ``gc.callbacks`` entry. Python swallows exceptions raised in one, so a Ctrl-C that is
        delivered here is sent once more."""
        try:
            if here() == self.thread:
                self._collected(phase, info)
        except KeyboardInterrupt:
            # A real signal: it also ends a sleep or a read that the thread has begun since.
            again = threading.Timer(SEND_AGAIN_S, signal.pthread_kill, (here(), signal.SIGINT))
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
