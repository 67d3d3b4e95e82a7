"""Checkpoints block training

## What it measures
Time inside `torch.save` on the training thread, its share of the mean step, and how often it
happens.

## Why it is slow
Serialising and writing the weights happens in the training thread; on a device the weights are
copied to the host first, which drains its queue.

## What to do
Save less often, save less (the optimizer's state is often twice the weights), or hand a copy of
the weights to a thread that writes while training goes on.

## How the gain is computed
High end: saving is asynchronous and only the copy is left. Low end: half as many checkpoints.

## When this advice is wrong
In a short run a single checkpoint weighs more than it will in the full one: look at the time of
one checkpoint against the time between two.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.kinds import Budget, Phases, Stacks
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.rules.base import Found, Gain, held, where
from tdiag.rules.examples import MS, budget, phases, stack, stacks
from tdiag.rules.measures import count, ns
from tdiag.units import duration, percent

CODE = "TD803"
NAME = "checkpoint-blocks-training"
CLASS = "checkpoint"

# Half as many checkpoints is the mildest change worth making.
RARER_LOW_FRAC = 0.5
# What saving may cost of the training time after the fix, for the interval that is suggested: the
# loss of one percent is within what step times vary anyway; ours.
AFFORDABLE_FRAC = 0.01


def check(budget: Budget, phases: Phases, stacks: Stacks | None) -> Found | None:
    saving = held(budget, "checkpoint")
    if not saving:
        return None
    each = phases.checkpoint_ns_each
    often = phases.counts.get("checkpoint", 0.0)
    at = _place(stacks)
    every = f", once in {1 / often:.0f} steps" if often else ""
    return Found(
        summary=(
            f"torch.save takes {percent(saving / budget.step_ns)} of the training time"
            f"{'' if each is None else f' ({duration(each)} each{every})'}."
        ),
        evidence=(
            ns("torch.save, per step", saving, "baseline"),
            *(() if each is None else (ns("one checkpoint", each, "baseline"),)),
            count("checkpoints", often, "baseline", "per_step"),
        ),
        fix=Fix(_advice(budget.step_ns - saving, each, at), "manual"),
        gain=Gain(
            saving * RARER_LOW_FRAC,
            saving,
            "low end: half as many checkpoints; high end: written while training goes on.",
            ("checkpoint",),
        ),
        at=at,
    )


def _advice(step_ns: float, each: float | None, at: Place | None) -> str:
    rarer = "less often"
    if each:
        rarer = f"every {max(1, round(each / step_ns / AFFORDABLE_FRAC))} steps or more"
    return (
        f"Save{where(at)} {rarer}, so that it takes at most {percent(AFFORDABLE_FRAC)} of the time;"
        " or copy the state to the CPU and let a thread call torch.save."
    )


def _place(stacks: Stacks | None) -> Place | None:
    """The line that saves, as sampled."""
    lines = [line for line in stacks.training if line.phase == "checkpoint"] if stacks else []
    return max(lines, key=lambda line: line.self_frac).at if lines else None


def fires() -> Evidence:
    clean = replace(phases({"checkpoint": 0.1}, checkpoint=12), checkpoint_ns_each=120.0 * MS)
    step = budget(forward=8, backward=14, optimizer=2, checkpoint=12)
    return Evidence().add(step, clean, stacks((stack(95, 0.3, phase="checkpoint"),)))


def clear() -> Evidence:
    """A checkpoint of 120 ms, but once in a thousand steps."""
    clean = replace(phases({"checkpoint": 0.001}, checkpoint=0.12), checkpoint_ns_each=120.0 * MS)
    return Evidence().add(budget(forward=8, backward=14, optimizer=2, checkpoint=0.12), clean)
