"""What other work on its core costs a training step beside its own time: caches that are cold.

Usage: ``python benchmarks/cold_caches.py [--processes 3]``, on a quiet machine, 5 minutes each

A step right after another one, and after a few ms of work that a training script may waste, by
turns in one process of one thread; medians of turns, then of processes. ``COLD_CACHES_NS`` and
``COLD_CACHES_FRAC`` of ``tdiag/diagnose/engine.py``, which bound what a prediction's high end adds
for it, are nearly the most that was found.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

TURNS, STEPS, LEFT_OUT = 14, 12, 2


def wastes(torch: Any) -> dict[str, Callable[[], Any]]:
    """Of 2 to 40 ms each, of the kinds that the catalogue knows."""
    row = [(k % 97) / 97 for k in range(6000)]
    packed = [zlib.compress(os.urandom(8000) * 4 + bytes(28_000)) for _ in range(24)]
    text = json.dumps([((k * 7919) % 1000) / 500 - 1 for k in range(4096)])
    x, scale, large = torch.randn(32, 256), torch.ones(256), torch.ones(1 << 22)

    heap = [[k] for k in range(200_000)]
    table = torch.ones(1 << 25)

    def collection() -> int:
        return gc.collect() + len(heap)

    def checkpoint() -> None:
        torch.save(large, os.devnull)

    def calls() -> None:
        for k in range(256):
            torch.tanh(x[:, k] * scale[k] + scale[k])

    return {
        "lists": lambda: [torch.tensor(row) for _ in range(16)],
        "decompression": lambda: [zlib.decompress(each) for each in packed],
        "JSON": lambda: [json.loads(text) for _ in range(8)],
        "small calls": calls,
        "a copy of 16 MiB": lambda: large.clone(),
        "a table of 128 MiB updated": lambda: table.mul_(1.0),
        "a collection": collection,
        "a checkpoint of 16 MiB": checkpoint,
    }


def models(torch: Any) -> dict[str, tuple[Any, Any]]:
    nn = torch.nn

    def layers(width: int, depth: int, batch: int) -> tuple[Any, Any]:
        body = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*body, nn.Linear(width, 10)), torch.randn(batch, width)

    pictures = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(4), nn.Flatten(), nn.Linear(2048, 10),
    )  # fmt: skip
    return {
        "2 × Linear(64)": layers(64, 2, 32),
        "2 × Linear(128)": layers(128, 2, 32),
        "3 × Linear(256)": layers(256, 3, 32),
        "2 × Linear(512)": layers(512, 2, 32),
        "4 × Linear(512)": layers(512, 4, 64),
        "2 × Conv2d(32), 8 pictures": (pictures, torch.randn(8, 3, 32, 32)),
    }


def one_process() -> None:
    """Prints rows: model, waste, ns of it, of a warm step and of a cold one."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, (model, x) in models(torch).items():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        y = torch.randint(10, (len(x),))

        def step(model: Any = model, x: Any = x, y: Any = y, optimizer: Any = optimizer) -> int:
            began = time.perf_counter_ns()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            return time.perf_counter_ns() - began

        for what, waste in wastes(torch).items():
            taken: dict[str, list[float]] = {"waste": [], "warm": [], "cold": []}
            for _ in range(TURNS):
                taken["warm"].append(statistics.median([step() for _ in range(STEPS)][LEFT_OUT:]))
                cold = []
                for _ in range(STEPS):
                    began = time.perf_counter_ns()
                    waste()
                    taken["waste"].append(time.perf_counter_ns() - began)
                    cold.append(step())
                taken["cold"].append(statistics.median(cold[LEFT_OUT:]))
            middle = {k: statistics.median(v) for k, v in taken.items()}
            print(json.dumps([name, what, middle["waste"], middle["warm"], middle["cold"]]))


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--processes", type=int, default=3)
    options.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.one:
        one_process()
        return
    rows: dict[tuple[str, str], list[list[float]]] = {}
    for number in range(args.processes):
        print(f"process {number + 1} of {args.processes}", file=sys.stderr)
        out = subprocess.check_output([sys.executable, __file__, "--one"], text=True)
        for name, what, *ns in map(json.loads, out.splitlines()):
            rows.setdefault((name, what), []).append(ns)
    longer, shares = [], []
    print("| step | after | ms of it | warm, ms | longer by, ms | warm ÷ cold |")
    print("|---|---|--:|--:|--:|--:|")
    for (name, what), taken in rows.items():
        waste, warm, _ = (statistics.median(column) for column in zip(*taken, strict=True))
        longer.append(statistics.median(cold - warm for _, warm, cold in taken))
        shares.append(1 - statistics.median(warm / cold for _, warm, cold in taken))
        print(f"| {name} | {what} | {waste / 1e6:.1f} | {warm / 1e6:.2f} | {longer[-1] / 1e6:.2f} |"
              f" {1 - shares[-1]:.2f} |")  # fmt: skip
    for label, values, digits in (("COLD_CACHES_NS", longer, 0), ("COLD_CACHES_FRAC", shares, 2)):
        *_, most = statistics.quantiles(values, n=20, method="inclusive")
        print(f"{label}: {min(values):.{digits}f} to {max(values):.{digits}f}, 19 of 20 pairs at"
              f" most {most:.{digits}f}")  # fmt: skip


if __name__ == "__main__":
    main()
