"""Measures a bare training step against the same step under tdiag's hooks, by turn-taking.

The turns are the product's own (``tdiag/duel``); since a bare process has no probe to hold it, the
worker speaks the protocol itself, on both sides. ``PAIRS`` fresh pairs of processes, because a
pair keeps a bias of its own (up to 2 % here, memory layout).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

TURN_STEPS = 20
PAIRS = 8
# Width of the model, four times the batch size: about 5 ms a step, and next to no arithmetic.
FULL, TINY = 256, 8


@dataclass(frozen=True)
class Turns:
    """ns a step in each turn of each pair: wall time, and on-CPU time of the training process."""

    wall_ns: list[list[float]] = field(default_factory=list)
    cpu_ns: list[list[float]] = field(default_factory=list)


def ratio(a: list[list[float]], b: list[list[float]]) -> str:
    """``b ÷ a``: the median over turns, with the interval that `tdiag check` would give."""
    from tdiag.duel.estimate import paired

    found = paired([[y / x for x, y in zip(*pair, strict=True)] for pair in zip(a, b, strict=True)])
    interval = f"95 % interval [{found.low - 1:+.2%}, {found.high - 1:+.2%}]"
    return f"{found.ratio - 1:+.2%}, {interval}"


def measure(turns: int, hooks: Path | None, size: int = FULL) -> tuple[Turns, Turns]:
    """Takes ``turns`` turns each, shared out among fresh pairs of processes; the second of each
    is watched by hooks that write to the run directory ``hooks``, if one is given."""
    from tdiag.duel.group import Pace, take_turns
    from tdiag.duel.side import Program
    from tdiag.launch.session import environment

    one_core = {"OMP_NUM_THREADS": "1"}
    watched = {**environment(hooks), **one_core} if hooks else one_core
    command = (sys.executable, __file__, str(size))
    both = Turns(), Turns()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(PAIRS):
            programs = [
                Program(name, command, Path.cwd(), variables, own_protocol=True)
                for name, variables in (("bare", one_core), ("other", watched))
            ]
            pace = Pace(turns // PAIRS, inf)
            pair = take_turns(programs, Path(folder) / str(number), pace)
            for side, taken in zip(both, pair, strict=True):
                cpu = (taken.run_dir / "cpu.txt").read_text().split()
                side.wall_ns.append(taken.mean_ns)
                side.cpu_ns.append([float(ns) for ns in cpu[-len(taken.mean_ns) :]])
    return both


def hooks_only(turns: int, size: int = FULL) -> tuple[Turns, Turns]:
    """The bare turns and those under hooks. Raises AssertionError if hooks missed steps."""
    from tdiag.launch import rundir

    with tempfile.TemporaryDirectory() as folder:
        run_dir = rundir.create("overhead", Path(folder) / "run")
        config = {"profiling": False, "steps": None, "time_budget_s": 1e9, "sampler": "off"}
        rundir.write_json(run_dir / "config.json", {**config, "windows": [], "sampler_hint": ""})
        results = measure(turns, run_dir, size)
        seen = sum(
            event["n"]
            for file in (run_dir / "events").iterdir()
            for event in map(json.loads, file.read_text().splitlines())
            if event["kind"] == "steps"
        )
        assert seen >= turns // PAIRS * PAIRS * TURN_STEPS, (
            f"hooks saw {seen} steps of {turns * TURN_STEPS}"
        )
    return results


def worker(size: int) -> None:
    """Runs ``TURN_STEPS`` training steps each time it is let go; ``size``: width of the model."""
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

    take_turns(steps())


def take_turns(training: Iterator[None]) -> None:
    """The program's side of the protocol (docs/run-directory.md, ``control/``)."""
    control = Path(os.environ["TDIAG_CONTROL"])
    cpu = control.parent / "cpu.txt"
    with (
        (control / "turns.go").open() as go,
        (control / "turns.done").open("w") as done,
        cpu.open("w") as on_cpu,
    ):
        told = {"ready": time.perf_counter_ns(), "step": 0, "world_size": 1, "outside": []}
        print(json.dumps(told), file=done, flush=True)
        for words in go:
            if not words.startswith("go"):
                return
            next(training)  # not timed: the other process's turn has left the caches cold
            start, busy = time.perf_counter_ns(), time.process_time_ns()
            for _ in range(TURN_STEPS):
                next(training)
            wall, busy = time.perf_counter_ns() - start, time.process_time_ns() - busy
            print(busy / TURN_STEPS, file=on_cpu, flush=True)
            print(json.dumps({"turn": [wall // TURN_STEPS]}), file=done, flush=True)


def keep_hooks_on() -> None:
    """One endless window of hooks, where a run would go on to its next window or detach."""
    if "tdiag_probe" in sys.modules:
        from tdiag_probe import plan  # type: ignore[import-not-found]

        plan.PLANS["diagnose"] = (plan.Window("baseline", 1, 10**9, 1e9, 1e9),)


if __name__ == "__main__":
    worker(int(sys.argv[1]))
