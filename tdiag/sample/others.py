"""Processes that are not of the program, as far as they keep cores busy.

CPU time, threads and name of any process may be read, and how long each thread ran or waited for a
core; whether it has loaded torch tells its memory map, which only its own user and root may read.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path

import psutil

# Of a core, over the seconds between two scans. On a crowded machine a thread that always wants one
# gets little: a tenth, where ten do. What it wants is sampled.
BUSY_CORES = 0.1
MOST = 8  # that are followed; more keep no machine busy that these do not


class Others:
    """``scan`` looks at every process, which is dear; ``sample`` only at those found busy."""

    def __init__(self) -> None:
        self.seen: dict[int, float] = {}  # pid → CPU seconds at the last scan
        self.scanned_s = 0.0
        self.busy: dict[int, tuple[psutil.Process, bool | None]] = {}

    def scan(self, tree: Collection[int]) -> None:
        """``tree``: pids of the program; tdiag and what it started are left out, too."""
        now, used = time.perf_counter(), {}
        own = {os.getpid()}
        with contextlib.suppress(psutil.Error):
            own |= {p.pid for p in psutil.Process().children(recursive=True)}
        for process in psutil.process_iter():
            if process.pid in own or process.pid in tree:
                continue
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                used[process.pid] = times.user + times.system
                before = self.seen.get(process.pid)
                passed = now - self.scanned_s
                if before is None or used[process.pid] - before < BUSY_CORES * passed:
                    continue
                if process.pid not in self.busy and len(self.busy) < MOST:
                    self.busy[process.pid] = process, _has_torch(process.pid)
        self.seen, self.scanned_s = used, now

    def sample(self) -> dict[str, list[int | str | bool | None]]:
        """pid → [CPU ns so far, the same and ns waited for a core, threads, name, has torch]."""
        found: dict[str, list[int | str | bool | None]] = {}
        for pid, (process, torch) in list(self.busy.items()):
            if not process.is_running():
                del self.busy[pid]
                continue
            with contextlib.suppress(psutil.Error), process.oneshot():
                times, threads = process.cpu_times(), process.num_threads()
                used = round((times.user + times.system) * 1e9)
                found[str(pid)] = [used, _wanted(pid), threads, process.name(), torch]
        return found


def _has_torch(pid: int) -> bool | None:
    try:
        return b"libtorch" in Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return None


def _wanted(pid: int) -> int | None:
    """ns that its threads ran or waited for a core (Documentation/scheduler/sched-stats.rst); None
    where the kernel does not tell."""
    total = None
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError):
            ran, waited, _ = file.read_text().split()
            total = (total or 0) + int(ran) + int(waited)
    return total
