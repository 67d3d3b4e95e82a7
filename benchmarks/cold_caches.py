"""What other work on its core costs a training step beside its own time: caches that are cold.

Usage: ``python benchmarks/cold_caches.py [--processes 3]``, on a quiet machine, 5 minutes each

A whole training step, from its loader to its optimizer, right after another one, and after a few ms
of work that a training script may waste, interleaved in one process of one
thread; medians of turns.
``COLD_CACHES_NS`` and ``COLD_CACHES_FRAC`` of ``tdiag/diagnose/engine.py``, which bound what a
prediction's high end adds for it, are nearly the most that was found.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TURNS, STEPS, LEFT_OUT = 10, 12, 2
BATCH, SAMPLES, READS = 32, 4096, 8


def wastes(torch: Any, folder: Path) -> dict[str, Callable[[], Any]]:
    """Of 2 to 200 ms each, of the kinds that the catalogue knows."""
    row = [(k % 97) / 97 for k in range(6000)]
    packed = [zlib.compress(os.urandom(8000) * 4 + bytes(28_000)) for _ in range(24)]
    text = json.dumps([((k * 7919) % 1000) / 500 - 1 for k in range(4096)])
    x, scale, large = torch.randn(32, 256), torch.ones(256), torch.ones(1 << 22)

    heap = [[k] for k in range(200_000)]
    table = torch.ones(1 << 25)

    def collection() -> int:
        return gc.collect() + len(heap)

    shard = folder / "shard"
    shard.write_bytes(os.urandom(1 << 24))

    def checkpoint() -> None:
        torch.save(large, folder / "checkpoint.pt")

    def reads() -> list[int]:
        return [len(shard.read_bytes()) for _ in range(READS)]

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
        "128 MiB read from files": reads,
    }


def trainings(torch: Any) -> dict[str, Callable[[], int]]:
    """Steps of small models, each from its loader to its optimizer; they return ns."""
    nn, adam = torch.nn, torch.optim.Adam

    def sgd(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)

    def layers(width: int, depth: int) -> Any:
        body = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*body, nn.Linear(width, 10))

    def training(model: Any, optimizing: Any, *shape: int) -> Callable[[], int]:
        data = [(torch.randn(shape), k % 10) for k in range(SAMPLES)]
        optimizer, batches = optimizing(model.parameters()), batches_of(torch, data)

        def step() -> int:
            began = time.perf_counter_ns()
            x, y = next(batches)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            loss.item()
            return time.perf_counter_ns() - began

        return step

    pictures = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(4), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    return {
        "2 × Linear(64), SGD": training(layers(64, 2), sgd, 64),
        "2 × Linear(128), Adam": training(layers(128, 2), adam, 128),
        "3 × Linear(256), SGD": training(layers(256, 3), sgd, 256),
        "3 × Linear(256), Adam": training(layers(256, 3), adam, 256),
        "2 × Linear(512), Adam": training(layers(512, 2), adam, 512),
        "2 × Conv2d(16), Adam": training(pictures, adam, 3, 16, 16),
    }


def batches_of(torch: Any, data: Any) -> Iterator[Any]:
    while True:
        yield from torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)


def one_process() -> None:
    """Prints rows: training, waste, ns of it, of a warm step and of a cold one."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        wasteful = wastes(torch, Path(folder))
        for name, step in trainings(torch).items():
            for what, waste in wasteful.items():
                print(json.dumps([name, what, *by_turns(step, waste)]), flush=True)


def by_turns(step: Callable[[], int], waste: Callable[[], Any]) -> list[float]:
    """Medians, ns: the waste, a step after a step, a step after the waste."""
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
    return [statistics.median(each) for each in taken.values()]


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
        command = [sys.executable, __file__, "--one"]
        with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as process:
            for name, what, *ns in map(json.loads, process.stdout or ()):
                print(name, what, *(f"{each / 1e6:.2f}" for each in ns), file=sys.stderr)
                rows.setdefault((name, what), []).append(ns)
    print("| step | after | ms of it | warm, ms | longer by, ms | warm ÷ cold |")
    print("|---|---|--:|--:|--:|--:|")
    for (name, what), taken in rows.items():
        waste, warm, _ = (statistics.median(column) / 1e6 for column in zip(*taken, strict=True))
        longer = statistics.median(cold - warm for _, warm, cold in taken) / 1e6
        share = statistics.median(warm / cold for _, warm, cold in taken)
        print(f"| {name} | {what} | {waste:.1f} | {warm:.2f} | {longer:.2f} | {share:.2f} |")
    each = [ns for taken in rows.values() for ns in taken]  # a prediction is for one process
    for label, values, digits in (
        ("COLD_CACHES_NS", [cold - warm for _, warm, cold in each], 0),
        ("COLD_CACHES_FRAC", [1 - warm / cold for _, warm, cold in each], 2),
    ):
        *_, most = statistics.quantiles(values, n=20, method="inclusive")
        print(f"{label}: {min(values):.{digits}f} to {max(values):.{digits}f}, 19 of 20 at most"
              f" {most:.{digits}f}")  # fmt: skip


if __name__ == "__main__":
    main()
