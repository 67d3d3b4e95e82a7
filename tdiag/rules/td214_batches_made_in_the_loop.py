"""Batches are made in the training loop, without a DataLoader

## What it measures
In a training that asks no DataLoader for its batches: the time from the end of a step to the first
forward call, how much of it the training thread spent on a core, and the line on which most of its
samples fell. Only where the program leaves cores unused.

## Why it is slow
While a generator or the loop itself reads, decodes and stacks the next batch, nothing trains: the
step is the *sum* of making a batch and computing, while other cores idle.

## What to do
Let a DataLoader with workers make the batches: the generator becomes the `__iter__` of an
`IterableDataset`, or the work on one sample the `__getitem__` of a `Dataset`.

## How the gain is computed
High end: each worker makes batches on a core of its own while the step trains, so that the step is
the longer of the two. Low end: nothing, as where a further core is worth little, or what lies
between the steps is not the making of batches.

## When this advice is wrong
Batches that are picked from tensors in memory in less than a millisecond or so cost more to hand
over between processes than to make. What runs between two steps may be something else (a schedule,
a log), as the line tells. An environment that has to be acted upon (reinforcement learning) cannot
run ahead.
"""

from __future__ import annotations

import math

from tdiag.evidence.data import Loaders
from tdiag.evidence.kinds import Budget, Environment, Phases, Stacks, System
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.rules.base import Found, Gain, held, where
from tdiag.rules.examples import budget, environment, loaders, phases, stack, stacks, system
from tdiag.rules.feed import HANDOVER_HIGH_NS, cores_full
from tdiag.rules.measures import count, frac, ns
from tdiag.rules.shares import MOSTLY_FRAC, NOTICEABLE_FRAC
from tdiag.units import duration, percent

CODE = "TD214"
NAME = "batches-made-in-the-loop"
CLASS = "cpu"
AFTER = {
    "TD207": "workers hide work that need not be done at all",
    "TD711": "workers hide a loop that need not run at all",
}


def check(
    budget: Budget,
    phases: Phases,
    system: System,
    environment: Environment,
    loaders: Loaders | None,
    stacks: Stacks | None,
) -> Found | None:
    making = held(budget, "prepare")
    wall, cpu = phases.wall_ns.get("prepare", 0.0), phases.cpu_ns.get("prepare", 0.0)
    by_hand = "data_wait" not in phases.wall_ns and not (loaders and loaders.train())
    if environment.device != "cpu" or not by_hand:
        return None
    if making < NOTICEABLE_FRAC * budget.step_ns or making < HANDOVER_HIGH_NS:
        return None
    if cpu <= MOSTLY_FRAC * wall or system.cores_allowed < 2 or cores_full(system):
        return None  # no core is left that could make them meanwhile
    rest = budget.step_ns - making
    workers = min(math.ceil(making / max(rest, 1.0)), math.floor(system.cores_allowed) - 1)
    at = _line(stacks)
    free = max(0.0, system.cores_allowed - (system.cores_used or 1.0))
    return Found(
        summary=(
            f"{percent(making / budget.step_ns)} of the step passes between the end of one step and"
            f" the first forward of the next ({duration(making)}, {percent(cpu / wall)} of it on a"
            f" core), most of it{where(at) or ' in the loop'}: batches are made without a"
            " DataLoader, while nothing trains."
        ),
        evidence=(
            ns("between the steps", making, "budget"),
            frac("of it on a core", cpu / wall, "baseline"),
            ns("rest of the step", rest, "budget"),
            count("cores allowed", system.cores_allowed, "system", "cores"),
        ),
        fix=Fix(
            f"Make the batches{where(at)} in workers: DataLoader(dataset, batch_size=None,"
            f" num_workers={workers}) over an IterableDataset whose __iter__ yields them, each"
            f" worker its share; a batch takes {duration(making)} to make and {duration(rest)} to"
            f" train on, and {free:.2g} of {system.cores_allowed:g} allowed cores are free.",
            "review",
        ),
        gain=Gain(
            0.0,
            budget.step_ns - max(rest, making / workers),
            f"high end: {duration(making)} of making ÷ {workers}, beside {duration(rest)} of"
            " training; low end: a further core is worth little.",
            ("prepare",),
        ),
        at=at,
    )


def _line(stacks: Stacks | None) -> Place | None:
    """The user's line on which most samples between the steps fell."""
    lines = [line for line in stacks.training if line.phase == "prepare"] if stacks else []
    return max(lines, key=lambda line: line.self_frac).at if lines else None


def fires() -> Evidence:
    step = budget(prepare=40, forward=8, backward=10, optimizer=2)
    made = phases(prepare=40, forward=8, backward=10, optimizer=2)
    sampled = stacks((stack(14, 0.55, "decode (PIL/Image.py)", "prepare", "batches"),))
    return Evidence().add(step, made, system(), environment(), sampled)


def clear() -> Evidence:
    """As much time, but a DataLoader's batches: what lies between is another rule's."""
    return fires().add(loaders())
