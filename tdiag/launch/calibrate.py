"""Measures the machine's best rates with the user's own torch, in a separate process.

Run as a script: ``python calibrate.py THREADS,… DTYPE,…``. It imports torch but nothing of tdiag,
and prints one JSON object per line, so a reader that stops early keeps what it has. Written for
Python 3.9, because the user's Python may be older than tdiag's.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.pop(0)  # this folder, whose modules are not the user's
import torch

# Each rate is the best of all rounds over all measurements: other programs disturb for milliseconds
# at a time and can only make it slower. Nine measurements take 0.2 s.
ROUNDS = 3
EACH_S = 0.008
SIDE = 512  # 0.27 GFLOP: 3 ms at 90 GFLOP/s, and three matrices of 1 MiB each
SMALLER = 128  # for a dtype without hardware instructions, which takes a hundred times as long
# Bytes that a copy reads and writes; the data is in a core's cache, in a shared cache, in memory.
COPIES = (1 << 18, 1 << 22, 1 << 26)
OPS = 100

Call = Callable[[], object]


def product(dtype: str) -> tuple[float, Call]:
    """Floating-point operations of a square matrix product, and the function that computes it. The
    smaller one only where the usual one would take too long: units for a narrow type need large
    matrices, and rates of different sizes do not compare."""
    units, call = square(dtype, SMALLER)
    return square(dtype, SIDE) if best_s(call) * (SIDE / SMALLER) ** 3 < EACH_S else (units, call)


def square(dtype: str, side: int) -> tuple[float, Call]:
    one, out = (torch.ones(side, side, dtype=getattr(torch, dtype)) for _ in range(2))
    return 2.0 * side**3, lambda: torch.mm(one, one, out=out)


def copy(size: int) -> tuple[float, Call]:
    """Bytes that a copy reads and writes, and the function that copies."""
    source = torch.ones(size // 8)
    target = torch.empty_like(source)
    return float(size), lambda: target.copy_(source)


def calls() -> tuple[float, Call]:
    """The number of ops on one element, and the function that calls them."""
    one = torch.ones(1)

    def run() -> None:
        for _ in range(OPS):
            torch.add(one, one)

    return float(OPS), run


def best_s(call: Call) -> float:
    """The shortest of at least two repetitions."""
    best, count, until = float("inf"), 0, time.perf_counter() + EACH_S
    while count < 2 or time.perf_counter() < until:
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
        count += 1
    return best


def queued_s() -> float:
    """Seconds that this process's threads have waited for a core; 0 if the kernel does not count
    it."""
    waited = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        waited += int(file.read_text().split()[1])
    return waited / 1e9


def main() -> None:
    """Print ``{"what", "threads", "per_s"}`` for each measurement, again if a later round was
    faster; finally ``{"queued"}``, the share of its time that a thread waited for a core."""
    threads = [int(word) for word in sys.argv[1].split(",")]
    made = {"calls": calls()}
    for dtype in sys.argv[2].split(","):
        with contextlib.suppress(RuntimeError):  # before torch 2.2 a CPU multiplies no float16
            units, call = product(dtype)
            call()
            made[dtype] = units, call
    made.update((f"copy {size}", copy(size)) for size in COPIES)
    best: dict[tuple[str, int], float] = {}
    began, waited = time.perf_counter(), queued_s()
    for _ in range(ROUNDS):
        for count in threads:
            torch.set_num_threads(count)
            for what, (units, call) in made.items():
                rate = units / best_s(call)
                if rate > best.get((what, count), 0.0):
                    best[what, count] = rate
                    print(json.dumps({"what": what, "threads": count, "per_s": rate}), flush=True)
    spent = (time.perf_counter() - began) * max(threads)
    print(json.dumps({"queued": min(1.0, (queued_s() - waited) / spent)}), flush=True)


if __name__ == "__main__":
    main()
