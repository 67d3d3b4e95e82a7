"""Samples the machine during the run: CPU, memory and disk of the program's processes, and the
GPUs.

Writes ``system.jsonl`` (docs/run-directory.md). CPU times and bytes read are *cumulative* counters,
so a reader gets the use in any interval by subtraction, and a late sample loses nothing. tdiag and
py-spy are not descendants of the program, so they are not counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import psutil

from tdiag.sample import limits
from tdiag.sample.gpu import Gpus

# Finding the descendants reads every process of the machine: 10 ms and more on a busy host. So it
# is done only as often as costs this share of one core, and so is what walks their memory.
SCAN_SHARE = 0.01


class SystemSampler:
    """Samples on request. A full disk ends the sampling, never the run."""

    def __init__(self, path: Path, pid: int, environment: Mapping[str, str] = os.environ) -> None:
        """``environment``: the program's, which chooses its GPUs."""
        self.path = path
        self.root: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            self.root = psutil.Process(pid)
        self.tree: dict[int, psutil.Process] = {}
        self.next_scan_s = 0.0
        self.gpus = Gpus(environment)
        self.others = Others()
        self.forks: dict[int, bool] = {}
        self.private: dict[str, int] = {}  # at the last search, not yet written
        self.on_cpu: dict[str, int] = {}  # where each main thread ran last
        self.writing = True
        self._write(self._machine())

    def sample(self) -> None:
        """Write one line."""
        if self.writing:
            self._write(self._sample())
            self.private = {}

    def processes(self) -> list[psutil.Process]:
        """The program's processes seen so far, its root first."""
        self._scan()
        return list(self.tree.values())

    def close(self) -> None:
        self.gpus.close()

    def _machine(self) -> dict[str, Any]:
        return {
            "kind": "machine",
            "t": time.perf_counter_ns(),
            "cores_machine": psutil.cpu_count() or 1,
            "cores_physical": psutil.cpu_count(logical=False),
            "cores_allowed": limits.cores_allowed(),
            "cpu_quota": limits.cpu_quota(),
            "ram_total": psutil.virtual_memory().total,
            "ram_limit": limits.memory_limit(),
            "gpus": self.gpus.describe(),
            "gpus_missing": self.gpus.missing,
        }

    def _sample(self) -> dict[str, Any]:
        times = psutil.cpu_times()
        # user and nice already include guest times (proc(5), /proc/stat).
        names = ("user", "nice", "system", "irq", "softirq", "steal")
        free = psutil.virtual_memory().available
        left = limits.memory_left()
        return {
            "kind": "sample",
            "t": time.perf_counter_ns(),
            "procs": self._processes(),
            "on_cpu": self.on_cpu,
            "queued": {str(pid): ns for pid in self.tree if (ns := _queued(pid)) is not None},
            "private": self.private,
            "others": self.others.sample(),
            "busy_ns": _ns(sum(getattr(times, name, 0.0) for name in names)),
            "ram_available": free if left is None else min(free, left),
            "gpus": self.gpus.sample(),
        }

    def _processes(self) -> dict[str, list[int | None]]:
        """pid → [CPU ns so far, resident bytes, bytes read from storage so far]."""
        self._scan()
        self.on_cpu = {}
        found: dict[str, list[int | None]] = {}
        for pid, process in list(self.tree.items()):
            if not process.is_running():
                del self.tree[pid]
                continue
            # It may have just ended, or be a set-uid child, whose use stays unknown.
            with contextlib.suppress(psutil.Error), process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
                found[str(pid)] = [_ns(times.user + times.system), memory.rss, _read(process)]
                if self.gpus.gpus and hasattr(process, "cpu_num"):
                    self.on_cpu[str(pid)] = process.cpu_num()
        return found

    def _scan(self) -> None:
        began = time.perf_counter()
        if self.root is None or began < self.next_scan_s:
            return
        with contextlib.suppress(psutil.Error):
            for process in (self.root, *self.root.children(recursive=True)):
                self.tree.setdefault(process.pid, process)
            self.others.scan(set(self.tree))
        self.private = {
            str(pid): kept
            for pid, process in self.tree.items()
            if self._forked(process) and (kept := _private(pid)) is not None
        }
        cost = time.perf_counter() - began
        self.next_scan_s = began + cost / SCAN_SHARE

    def _forked(self, process: psutil.Process) -> bool:
        """Whether it is a copy of its parent, such as a DataLoader's worker. A rank is not: walking
        its memory would hold up its allocations."""
        if process.pid not in self.forks:
            with contextlib.suppress(psutil.Error):
                parent = self.tree.get(process.ppid())
                self.forks[process.pid] = (
                    parent is not None and process.cmdline() == parent.cmdline()
                )
        return self.forks.get(process.pid, False)

    def _write(self, record: dict[str, Any]) -> None:
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(record, separators=(",", ":")) + "\n")
        except OSError:
            self.writing = False


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _read(process: psutil.Process) -> int | None:
    """Bytes that the process made the kernel read from storage; None if not counted."""
    try:
        return int(process.io_counters().read_bytes)
    except (AttributeError, psutil.AccessDenied, NotImplementedError, OSError):
        return None


# In cores, over the seconds between two scans. On a crowded machine a thread that always wants a
# core gets little: a tenth, if ten compete. The samples show what it wants.
BUSY_CORES = 0.1
MOST_OTHERS = 8  # processes to follow; that is enough to show that a machine is busy


class Others:
    """``scan`` reads every process, which is expensive; ``sample`` reads only the busy ones."""

    def __init__(self) -> None:
        self.seen: dict[int, float] = {}  # pid → CPU seconds at the last scan
        self.scanned_s = 0.0
        self.busy: dict[int, tuple[psutil.Process, bool | None]] = {}

    def scan(self, tree: Collection[int]) -> None:
        """``tree``: pids of the program; tdiag and its children are left out, too."""
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
                if process.pid not in self.busy and len(self.busy) < MOST_OTHERS:
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


def _queued(pid: int) -> int | None:
    """ns that its main thread was ready and waited for a core; None if the kernel does not report
    it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    return None


def _private(pid: int) -> int | None:
    """Bytes of memory that the process has written and shares with no other (proc(5)); None if the
    kernel does not report it. This walks the process's pages: a few milliseconds for a gigabyte."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, kilobytes = line.partition(":")
            if name == "Private_Dirty":
                return int(kilobytes.split()[0]) * 1024
    return None


def _wanted(pid: int) -> int | None:
    """ns that its threads ran or waited for a core (Documentation/scheduler/sched-stats.rst); None
    if the kernel does not report it."""
    total = None
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError):
            ran, waited, _ = file.read_text().split()
            total = (total or 0) + int(ran) + int(waited)
    return total
