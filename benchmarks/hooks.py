"""A bare training step against the same step under tdiag's hooks, interleaved in one process.

Two processes will not do: each keeps a bias of its own for as long as it lives (where its memory
came to lie), 6 % from pair to pair of them here. So one process trains on, and its hooks are put
on and taken off again between turns, each in turn first. Taken off, every attribute is the
original one and nothing of tdiag's runs. ``PROCESSES`` fresh ones, because what the hooks cost may
depend on the memory, too.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TURN_STEPS = 10
WARM_UP_STEPS = 40
PROCESSES = 8
# Width of the model, four times the batch size: about 5 ms a step, and next to no arithmetic.
FULL, TINY = 256, 8
# Of the turns of a round: both orders, so that a steady drift favours neither.
ROUND = (False, True, True, False)


@dataclass(frozen=True)
class Turn:
    """ns a step, the mean of ``TURN_STEPS``: wall time, and on-CPU time of the process."""

    hooked: bool
    wall_ns: float
    cpu_ns: float


@dataclass(frozen=True)
class Pairs:
    """Of neighbouring turns, ns a step in each: (bare, hooked), and (bare, bare) for the noise."""

    hooked: list[tuple[Turn, Turn]]
    bare: list[tuple[Turn, Turn]]


def measure(rounds: int, size: int = FULL) -> list[Pairs]:
    """``rounds`` rounds of four turns in each of ``PROCESSES`` processes, one after the other.

    Raises AssertionError where the hooks did not see the steps of their turns, or saw others.
    """
    return [_process(rounds, size) for _ in range(PROCESSES)]


def _process(rounds: int, size: int) -> Pairs:
    from tdiag.launch import rundir
    from tdiag.launch.session import environment

    with tempfile.TemporaryDirectory() as folder:
        run_dir = rundir.create("overhead", Path(folder) / "run")
        config = {"profiling": False, "steps": None, "time_budget_s": 1e9, "sampler": "off"}
        rundir.write_json(run_dir / "config.json", {**config, "windows": [], "sampler_hint": ""})
        variables = {**os.environ, **environment(run_dir), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, str(size), str(rounds)]
        printed = subprocess.check_output(command, env=variables, text=True)
        turns = [Turn(*turn) for turn in json.loads(printed.splitlines()[-1])]
        seen = sum(
            event["n"]
            for file in (run_dir / "events").iterdir()
            for event in map(json.loads, file.read_text().splitlines())
            if event["kind"] == "steps"
        )
    # Each turn's first step is not timed, but seen.
    hooked = sum(turn.hooked for turn in turns) * (TURN_STEPS + 1)
    assert hooked <= seen <= hooked + WARM_UP_STEPS, f"hooks saw {seen} steps, not {hooked}"
    pairs = Pairs([], [])
    for a, b, c, d in zip(*[iter(turns)] * len(ROUND), strict=True):
        pairs.hooked.extend([(a, b), (d, c)])
        pairs.bare.append((a, d))
    return pairs


def worker(size: int, rounds: int) -> None:
    """Trains under the probe, takes its hooks off and on; prints the turns as JSON."""
    training = train(size)
    hooks = Hooks()
    for _ in range(WARM_UP_STEPS):
        next(training)
    turns = []
    for number in range(rounds * len(ROUND)):
        hooked = ROUND[number % len(ROUND)]
        hooks.switch(hooked)
        next(training)  # not timed: it begins where the hooks were switched
        wall, busy = time.perf_counter_ns(), time.process_time_ns()
        for _ in range(TURN_STEPS):
            next(training)
        wall, busy = time.perf_counter_ns() - wall, time.process_time_ns() - busy
        turns.append((hooked, wall / TURN_STEPS, busy / TURN_STEPS))
    hooks.switch(True)
    print(json.dumps(turns))


def train(size: int) -> Iterator[None]:
    """A training that never ends, of one pass: what an epoch costs is not asked here."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, RandomSampler, TensorDataset

    torch.manual_seed(0)
    batch = size // 4
    data = TensorDataset(torch.randn(64 * batch, size), torch.randint(10, (64 * batch,)))
    sampler = RandomSampler(data, replacement=True, num_samples=1 << 40)
    loader = DataLoader(data, batch_size=batch, sampler=sampler)
    layers = [layer for _ in range(6) for layer in (nn.Linear(size, size), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(size, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


class Hooks:
    """Of the probe in this process, in one endless window."""

    def __init__(self) -> None:
        from tdiag_probe import plan  # type: ignore[import-not-found]

        plan.PLANS["diagnose"] = (plan.PlannedWindow("baseline", 1, 10**9, 1e9, 1e9),)
        self.on = True
        self.probe: Any = None
        self.removed: list[Any] = []

    def switch(self, on: bool) -> None:
        """Put every attribute that the probe replaced where it belongs."""
        if on == self.on:
            return
        self.on = on
        self.probe = probe = self.probe or _probe()
        if on:
            for patch in self.removed:
                probe.patches.set(*patch)
            probe.marks.watch_gc()
            probe.marks.cut(time.perf_counter_ns())
        else:
            probe.cut_steps()
            self.removed = [made[:3] for made in probe.patches.made]
            probe.patches.undo()
            probe.marks.unwatch_gc()


def _probe() -> Any:
    from tdiag_probe.core import Probe  # type: ignore[import-not-found]

    return next(found for found in gc.get_objects() if type(found) is Probe)


def ratios(pairs: list[tuple[Turn, Turn]], clock: str) -> list[float]:
    """Second ÷ first of each pair. ``clock``: ``wall_ns`` or ``cpu_ns``."""
    return [getattr(b, clock) / getattr(a, clock) for a, b in pairs]


def summary(groups: list[list[float]]) -> str:
    """The median of all pairs less one, with its interval over processes and the quartiles."""
    from tdiag.duel.estimate import paired

    found = paired(groups)
    first, _, third = statistics.quantiles([ratio for group in groups for ratio in group], n=4)
    return (
        f"{found.ratio - 1:+.2%}, 95 % interval [{found.low - 1:+.2%}, {found.high - 1:+.2%}],"
        f" quartiles of pairs {first - 1:+.1%} to {third - 1:+.1%}"
    )


if __name__ == "__main__":
    worker(int(sys.argv[1]), int(sys.argv[2]))
