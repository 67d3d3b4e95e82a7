"""The kernel's counters for the calling thread: reads, page faults, kernel time, waiting."""

from __future__ import annotations

import os
import resource
import threading
import time
from typing import Any

from .wire import ENDED

# Positions in /proc/…/io, whose lines have had this order since Linux 2.6.20.
RCHAR, READ_BYTES = 1, 9
MOST_THREADS = 64  # each costs some 10 µs to read, twice a window
MOST_TASKS = 4 * MOST_THREADS
_RUSAGE_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


def kernel_ns() -> int:
    """CPU time that the calling thread has spent in the kernel."""
    return int(resource.getrusage(_RUSAGE_THREAD).ru_stime * 1e9)


def pool_threads() -> int | None:
    """Threads of this process that Python did not start: C libraries did."""
    try:
        return max(0, len(os.listdir("/proc/self/task")) - threading.active_count())
    except OSError:
        return None


def python_threads_ns() -> dict[int, int]:
    """CPU time so far of the other threads that Python started, by native id; of those that the
    system shows, and at most ``MOST_THREADS`` of them. ``ENDED``: of all threads of this process
    that have ended, if it has few."""
    mine, found = threading.get_native_id(), {}
    for thread in threading.enumerate()[:MOST_THREADS]:
        tid = thread.native_id
        if tid is None or tid == mine:
            continue
        spent = _on_core_ns(tid)
        if spent is not None:
            found[tid] = spent
    if found and (ended := _ended_ns()) is not None:
        found[ENDED] = ended
    return found


def _on_core_ns(tid: int | str) -> int | None:
    try:
        with open(f"/proc/self/task/{tid}/schedstat", "rb") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None  # it has ended, or the system counts nothing


def _ended_ns() -> int | None:
    """What the process has spent and none of its threads has."""
    try:
        tids = os.listdir("/proc/self/task")
    except OSError:
        return None
    if len(tids) > MOST_TASKS:
        return None
    spent = [_on_core_ns(tid) or 0 for tid in tids]
    return max(0, time.process_time_ns() - sum(spent))


def resident_bytes() -> int | None:
    """Memory of this process that is in RAM."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return None


class ThreadCounters:
    """Opened once per thread, read around each fetch. Counters that the system lacks are None."""

    def __init__(self) -> None:
        self.io = _open("/proc/thread-self/io")
        self.schedule = _open("/proc/thread-self/schedstat")

    def read(self) -> tuple[int | None, int | None, int | None, int, int]:
        """(storage bytes read, bytes through read calls, ns waiting for a core, major faults,
        ns of CPU time in the kernel)."""
        read = rchar = waited = None
        try:
            if self.io is not None:
                words = os.pread(self.io, 512, 0).split()  # rchar: N wchar: N syscr: N …
                rchar, read = int(words[RCHAR]), int(words[READ_BYTES])
            if self.schedule is not None:
                waited = int(os.pread(self.schedule, 128, 0).split()[1])
        except OSError:
            pass  # at exit the training thread may have ended: its counters went with it
        usage = resource.getrusage(_RUSAGE_THREAD)
        return read, rchar, waited, usage.ru_majflt, int(usage.ru_stime * 1e9)

    def core_ns(self) -> dict[str, int | None]:
        """Time on a core and time waiting for one, under the names of the `window` record."""
        return {"cpu": time.thread_time_ns(), "runq": self.read()[2]}

    def since(self, before: tuple[int | None, ...]) -> dict[str, Any]:
        """The growth since ``before``, under the names of the `fetch` record."""
        grown = (
            None if b is None or a is None else b - a
            for a, b in zip(before, self.read())
        )  # fmt: skip
        return dict(zip(("read", "rchar", "runq", "majflt", "kernel"), grown))


def _open(path: str) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        text = os.pread(descriptor, 512, 0)
        return descriptor if path.endswith("schedstat") or b"\nread_bytes:" in text else None
    except OSError:
        return None
