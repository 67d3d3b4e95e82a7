"""Measures what further cores add, in a short test after the run.

A process computes alone, then as many at once as there are cores. Two hardware threads
of one core, or cores that other programs use, do less together than each would alone. Run as
``python -m tdiag.sample.cores PROCESSES`` it prints the result.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from ctypes import c_double
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

from tdiag.probe.wire import CORES, events_files
from tdiag.sample.limits import cores_allowed

ROUNDS, EACH_S = 4, 0.01  # of each kind of work, alone and at once: 0.25 s in all
WITHIN_S = 5.0  # a process that gets no core for as long makes the result useless
MOST_PROCESSES = 32  # they say what each of more cores would add

PACKED = zlib.compress(bytes(range(256)) * 64)
TEXT = json.dumps(list(range(500)))
# What fetches do: the interpreter's own work, tables and memory, strings made into objects.
WORKS: dict[str, Callable[[], object]] = {
    "python": lambda: sum(i * i for i in range(500)),
    "zlib": lambda: zlib.decompress(PACKED),
    "json": lambda: json.loads(TEXT),
}


def try_cores(run_dir: Path) -> None:
    """Write ``cores.json`` if the program fetched batches and may use two cores or more."""
    processes = min(MOST_PROCESSES, int(cores_allowed()))
    if processes < 2 or not _fetched(run_dir):
        return
    command = [sys.executable, "-m", __name__, str(processes)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, capture_output=True, timeout=2 * WITHIN_S, stdin=subprocess.DEVNULL, check=True
        )
        (run_dir / CORES).write_bytes(done.stdout)


def further_core(processes: int) -> dict[str, float]:
    """Kind of work → what each core beyond the first adds, as a share of one alone: 1 if each of
    them does as much."""
    forking = multiprocessing.get_context("fork")
    began = forking.RawValue("d")  # one clock for all: one that gets no core in time does less

    def begin() -> None:
        began.value = time.perf_counter()

    barrier = forking.Barrier(processes, begin, timeout=WITHIN_S)
    ends = [forking.Pipe(duplex=False) for _ in range(processes)]
    made = [
        forking.Process(target=_compute, args=(barrier, began, number, end), daemon=True)
        for number, (_, end) in enumerate(ends)
    ]
    for process in made:
        process.start()
    for _, end in ends:
        end.close()
    alone, at_once = zip(*(receiving.recv() for receiving, _ in ends), strict=True)
    adds = {}
    for kind in WORKS:
        together = zip(*(rates[kind] for rates in at_once), strict=True)
        adds[kind] = (max(map(sum, together)) / max(alone[0][kind]) - 1) / (processes - 1)
    return adds


def _compute(barrier: Barrier, began: c_double, number: int, end: Connection) -> None:
    """Send calls per second in each round: alone, while the others wait, and at once."""
    alone: dict[str, list[float]] = {kind: [] for kind in WORKS}
    at_once: dict[str, list[float]] = {kind: [] for kind in WORKS}
    for _ in range(ROUNDS):
        for kind, work in WORKS.items():
            barrier.wait()
            if number == 0:
                alone[kind].append(_per_s(work, began))
            barrier.wait()
            at_once[kind].append(_per_s(work, began))
    end.send((alone, at_once))


def _per_s(work: Callable[[], object], began: c_double) -> float:
    count, until = 0, began.value + EACH_S
    while time.perf_counter() < until:
        work()
        count += 1
    return count / EACH_S


def _fetched(run_dir: Path) -> bool:
    for file in events_files(run_dir):
        with contextlib.suppress(OSError):
            if any(kind == "fetch" for kind, _ in file.read()):
                return True
    return False


if __name__ == "__main__":
    print(json.dumps(further_core(int(sys.argv[1]))))
