"""Measures a bare training step against the same step under tdiag's hooks, by turn-taking.

Two processes run the same steps, one plain, one with the probe injected and all its windows but
the hooks left out. They take turns of ``TURN_STEPS`` steps, the order swapped each turn, so that
whatever else the machine does hits both alike; separate runs vary by 9–16 % here. A pair of
processes keeps a bias of its own (up to 2 % here, memory layout), so there are ``PAIRS`` of them.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

TURN_STEPS = 20
WARM_UP_TURNS = 3
PAIRS = 8
RESAMPLES = 2000
# Width of the model, four times the batch size: about 5 ms a step, and next to no arithmetic.
FULL, TINY = 256, 8


@dataclass(frozen=True)
class Ratio:
    """``b ÷ a`` of pairs of turns: median, 95 % interval of it (bootstrap), and quartiles."""

    median: float
    low: float
    high: float
    quartiles: tuple[float, float]

    def __str__(self) -> str:
        interval = f"95 % interval [{self.low - 1:+.2%}, {self.high - 1:+.2%}]"
        first, third = self.quartiles
        return f"{self.median - 1:+.2%}, {interval}, quartiles {first - 1:+.1%} to {third - 1:+.1%}"


def ratio(a: list[int], b: list[int]) -> Ratio:
    pairs = [y / x for x, y in zip(a, b, strict=True)]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    low, high = medians[RESAMPLES // 40], medians[-RESAMPLES // 40]
    first, _, third = statistics.quantiles(pairs, n=4)
    return Ratio(statistics.median(pairs), low, high, (first, third))


@dataclass(frozen=True)
class Turns:
    """ns of each turn: wall time and on-CPU time of the training process."""

    wall_ns: list[int]
    cpu_ns: list[int]


def measure(turns: int, run_dir: Path | None, size: int = FULL) -> tuple[Turns, Turns]:
    """Takes ``turns`` turns each, shared out among fresh pairs of processes; the second of each
    is watched if ``run_dir`` is given."""
    both = Turns([], []), Turns([], [])
    for _ in range(PAIRS):
        for side, more in zip(both, _one_pair(turns // PAIRS, run_dir, size), strict=True):
            side.wall_ns.extend(more.wall_ns)
            side.cpu_ns.extend(more.cpu_ns)
    return both


def _one_pair(turns: int, run_dir: Path | None, size: int) -> tuple[Turns, Turns]:
    plain = {**os.environ, "OMP_NUM_THREADS": "1"}
    watched = plain
    if run_dir:
        from tdiag.launch.session import environment

        watched = {**environment(run_dir), "OMP_NUM_THREADS": "1"}
    with _start(plain, size) as a, _start(watched, size) as b:
        results = {a: Turns([], []), b: Turns([], [])}
        for turn in range(-WARM_UP_TURNS, turns):
            for process in (a, b) if turn % 2 else (b, a):
                wall, cpu = _take_turn(process)
                if turn >= 0:
                    results[process].wall_ns.append(wall)
                    results[process].cpu_ns.append(cpu)
        for process in (a, b):
            cast(IO[str], process.stdin).close()
            process.wait()
    return results[a], results[b]


def hooks_only(turns: int, size: int = FULL) -> tuple[Turns, Turns]:
    """The bare turns and those under hooks. Raises AssertionError if hooks missed steps."""
    from tdiag.launch import rundir

    with tempfile.TemporaryDirectory() as folder:
        run_dir = rundir.create("overhead", Path(folder) / "run")
        config = {"profiling": False, "steps": None, "time_budget_s": 1e9, "sampler": "off"}
        rundir.write_json(run_dir / "config.json", {**config, "windows": [], "sampler_hint": ""})
        results = measure(turns, run_dir, size)
        seen = sum(
            json.loads(line)["kind"] == "step"
            for file in (run_dir / "events").iterdir()
            for line in file.read_text().splitlines()
        )
        assert seen >= turns // PAIRS * PAIRS * TURN_STEPS, (
            f"hooks saw {seen} steps of {turns * TURN_STEPS}"
        )
    return results


def _start(environ: dict[str, str], size: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, str(size)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, text=True)


def _take_turn(process: subprocess.Popen[str]) -> tuple[int, int]:
    stdin, stdout = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
    stdin.write("go\n")
    stdin.flush()
    wall, cpu = stdout.readline().split()
    return int(wall), int(cpu)


def worker(size: int) -> None:
    """Runs ``TURN_STEPS`` training steps for each line on stdin; ``size``: width of the model."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    keep_hooks_on()
    torch.manual_seed(0)
    batch = size // 4
    data = TensorDataset(torch.randn(64 * batch, size), torch.randint(10, (64 * batch,)))
    loader = DataLoader(data, batch_size=batch, shuffle=True)
    layers = [layer for _ in range(6) for layer in (nn.Linear(size, size), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(size, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def steps() -> Iterator[None]:
        while True:
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                yield

    training = steps()
    for _ in sys.stdin:
        next(training)  # not timed: the other process's turn has left the caches cold
        start, on_cpu = time.perf_counter_ns(), time.process_time_ns()
        for _ in range(TURN_STEPS):
            next(training)
        print(time.perf_counter_ns() - start, time.process_time_ns() - on_cpu, flush=True)


def keep_hooks_on() -> None:
    """One endless window of hooks, where a run would go on to its next window or detach."""
    if "tdiag_probe" in sys.modules:
        from tdiag_probe import plan  # type: ignore[import-not-found]

        plan.FIRST = (plan.Window("baseline", 1, 10**9, 1e9, 1e9),)
        plan.SECOND = ()


if __name__ == "__main__":
    worker(int(sys.argv[1]))
