"""What the main threads of a running program do, by the kernel's counters: on a core, waiting for
one, waiting for a disk.

Sources: Linux Documentation/scheduler/sched-stats.rst (``schedstat``), proc_pid_stat(5) (``D`` =
waiting in uninterruptible sleep, which is nearly always a disk).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class _Counters(NamedTuple):
    at_ns: int
    ran_ns: int
    queued_ns: int
    process_ns: int
    read_bytes: int | None


@dataclass
class _FirstAndLast:
    """The counters at the first look and now."""

    first: _Counters
    last: _Counters
    samples: int = 0
    on_disk: int = 0


class ThreadStates:
    """``look`` is called several times a second; ``summary`` has a row for each process seen at
    least twice."""

    def __init__(self) -> None:
        self.seen: dict[int, _FirstAndLast] = {}

    def look(self, pids: Iterable[int]) -> None:
        for pid in pids:
            with contextlib.suppress(OSError, ValueError, IndexError):
                ran, queued, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
                # The command in brackets may itself contain spaces and brackets.
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                process_ns = (int(fields[11]) + int(fields[12])) * _TICK_NS  # utime, stime
                at = time.perf_counter_ns()
                now = _Counters(at, int(ran), int(queued), process_ns, _read_bytes(pid))
                seen = self.seen.setdefault(pid, _FirstAndLast(now, now))
                seen.last = now
                seen.samples += 1
                seen.on_disk += fields[0] == "D"

    def summary(self) -> list[dict[str, Any]]:
        """``wall_ns``, ``cpu_ns`` and ``queued_ns`` of the main thread; ``process_ns`` (on a core)
        and ``read_bytes`` (None = not counted) of all threads; ``disk``: samples with the main
        thread waiting for a disk."""
        return [
            {
                "pid": pid,
                "wall_ns": seen.last.at_ns - seen.first.at_ns,
                "cpu_ns": seen.last.ran_ns - seen.first.ran_ns,
                "queued_ns": seen.last.queued_ns - seen.first.queued_ns,
                "process_ns": seen.last.process_ns - seen.first.process_ns,
                "read_bytes": _difference(seen.first.read_bytes, seen.last.read_bytes),
                "samples": seen.samples,
                "disk": seen.on_disk,
            }
            for pid, seen in self.seen.items()
            if seen.samples > 1
        ]


def _read_bytes(pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("read_bytes: "):
                return int(line.split()[1])
    return None


def _difference(first: int | None, last: int | None) -> int | None:
    return None if first is None or last is None else last - first
