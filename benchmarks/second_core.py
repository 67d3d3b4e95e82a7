"""What one loader worker wins over making batches in the loop, for work on a core.

Usage: ``python benchmarks/second_core.py [--processes 3]``, on a quiet machine, 40 s each

A training takes turns, in one process of one thread, with a loader that fetches in the loop and
with one that has a worker; each turn leaves out the batches that the worker had ready. On a machine
whose second core is another thread of the first, or is shared with others, a worker wins little or
loses: ``SECOND_CORE_COSTS_FRAC`` of ``tdiag/rules/feed.py`` is the most in nine of ten trials.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

TURNS, BATCHES, BATCH, READY = 8, 8, 16, 3
SAMPLES, WIDTH = 1 << 14, 256


def fetches(torch: Any) -> dict[str, Callable[[int], Any]]:
    """Ways to make a sample of WIDTH numbers, of 0.1 to 2 ms each."""
    packed = zlib.compress((os.urandom(1000) + bytes(24_000)) * 8)
    text = json.dumps([((k * 7919) % 1000) / 500 - 1 for k in range(2048)])
    words = " ".join(f"word{(k * 31) % 977}" for k in range(3000))
    values = [(k % 97) / 97 for k in range(6000)]
    picture = torch.rand(1, 3, 96, 96)

    def decompressed(index: int) -> Any:
        return torch.frombuffer(bytearray(zlib.decompress(packed)), dtype=torch.uint8)[:WIDTH] / 255

    def parsed(index: int) -> Any:
        return torch.tensor(json.loads(text)[:WIDTH])

    def tokens(index: int) -> Any:
        counted = [0.0] * WIDTH
        for word in words.split():
            counted[len(word) * int(word[4:]) % WIDTH] += 1
        return torch.tensor(counted)

    def lists(index: int) -> Any:
        return torch.tensor(values)[:WIDTH]

    def resized(index: int) -> Any:
        small = torch.nn.functional.interpolate(picture, size=(64, 64), mode="bilinear")
        return small.flatten()[:WIDTH].contiguous()

    return {"decompression": decompressed, "JSON": parsed, "tokens": tokens, "lists": lists,
            "a resized picture": resized}  # fmt: skip


def one_process() -> None:
    """Prints rows: kind, rest of the step's width, ns with batches made in the loop and by a
    worker."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    for kind, fetch in fetches(torch).items():
        for width in (64, 1024):
            print(json.dumps([kind, width, *by_turns(torch, fetch, width)]), flush=True)


def by_turns(torch: Any, fetch: Callable[[int], Any], width: int) -> list[float]:
    """Medians of turns, ns a step: batches made in the loop, by one worker."""

    class Samples(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            return fetch(index), index % 10

    nn = torch.nn
    model = nn.Sequential(nn.Linear(WIDTH, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.Adam(model.parameters())

    def step(batches: Iterator[Any]) -> None:
        x, y = next(batches)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    loaders = {
        workers: iter(torch.utils.data.DataLoader(Samples(), batch_size=BATCH, num_workers=workers))
        for workers in (0, 1)
    }
    taken: dict[int, list[float]] = {0: [], 1: []}
    for turn in range(TURNS):
        for workers in (0, 1) if turn % 2 else (1, 0):
            for _ in range(READY):
                step(loaders[workers])
            began = time.perf_counter_ns()
            for _ in range(BATCHES):
                step(loaders[workers])
            taken[workers].append((time.perf_counter_ns() - began) / BATCHES)
    return [statistics.median(each) for each in taken.values()]


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--processes", type=int, default=3)
    options.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.one:
        one_process()
        return
    wins: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for number in range(args.processes):
        print(f"process {number + 1} of {args.processes}", file=sys.stderr)
        out = subprocess.check_output([sys.executable, __file__, "--one"], text=True)
        for kind, width, alone, worker in map(json.loads, out.splitlines()):
            wins.setdefault((kind, width), []).append((alone, alone / worker))
    print("| a batch of | beside layers of | ms a step | one worker wins |")
    print("|---|--:|--:|---|")
    for (kind, width), rows in wins.items():
        took = statistics.median(alone for alone, _ in rows) / 1e6
        listed = ", ".join(f"{win:.2f}" for _, win in sorted(rows))
        print(f"| {kind} | {width} | {took:.1f} | {listed} |")
    every = [win for rows in wins.values() for _, win in rows]
    print(f"\n{min(every):.2f} to {max(every):.2f} times")


if __name__ == "__main__":
    main()
