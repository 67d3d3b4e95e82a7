"""A program of fixed work that takes turns with the script: how fast the machine is just now.

Run as a file, ``python yardstick.py interpreter|arithmetic|memory``, with numpy only; it speaks
the protocol of ``tdiag/probe/capture/turns.py`` itself. A training step is made of these three in
some mixture: Python and dispatch, arithmetic in the caches, and traffic to memory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

KINDS = ("interpreter", "arithmetic", "memory")
TURN_NS = 25_000_000  # of one kind; three of them take about as long as the script's turn
LOOP = 20_000  # additions: about 1 ms
MATRIX = 192  # 192³ multiplications and additions: about 0.5 ms on one core
COPY_BYTES = 16 << 20  # larger than the caches of a core


def work(kind: str) -> Callable[[], object]:
    import numpy as np

    if kind == "interpreter":
        return lambda: sum(i & 7 for i in range(LOOP))
    if kind == "arithmetic":
        matrix = np.ones((MATRIX, MATRIX), np.float32)
        return lambda: matrix @ matrix
    source = np.zeros(COPY_BYTES, np.uint8)
    target = np.empty_like(source)
    return lambda: np.copyto(target, source)


def turn(once: Callable[[], object]) -> list[int]:
    """Repeat for ``TURN_NS``, the first time left out; ns of each."""
    once()
    taken: list[int] = []
    began = last = time.perf_counter_ns()
    while last - began < TURN_NS:
        once()
        now = time.perf_counter_ns()
        taken.append(now - last)
        last = now
    return taken


def main() -> None:
    control = Path(os.environ["TDIAG_CONTROL"])
    once = work(sys.argv[1])
    with (control / "turns.go").open() as go, (control / "turns.done").open("w") as done:
        alone = {"rank": 0, "world_size": 1, "local": 1, "pid": os.getpid()}
        told = {"ready": time.perf_counter_ns(), "step": 0, "outside": []}
        print(json.dumps({**alone, **told}), file=done, flush=True)
        for words in go:
            if not words.startswith("go"):
                return
            print(json.dumps({**alone, "turn": turn(once)}), file=done, flush=True)


if __name__ == "__main__":
    main()
