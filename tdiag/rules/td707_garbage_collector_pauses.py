"""The garbage collector pauses training

## What it measures
Time inside Python's cyclic garbage collector on the training thread, per step.

## Why it is slow
A full collection walks every container object alive: a dataset held as Python lists or dicts of
millions of entries is walked again and again, and nothing in it is garbage.

## What to do
After set-up, `gc.freeze()` takes what is alive out of the collector's sight; hold large data in
arrays.

## How the gain is computed
High end: all of the pauses. Low end: half, if new objects keep it busy.

## When this advice is wrong
Objects frozen and later dropped are freed by reference counting as always, but cycles among them
never are.
"""

from __future__ import annotations

from tdiag.evidence.kinds import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, held
from tdiag.rules.examples import budget, phases
from tdiag.rules.measures import count, ns
from tdiag.units import duration, percent, plural

CODE = "TD707"
NAME = "garbage-collector-pauses"
CLASS = "overhead"

# Half may stay where the loop itself makes containers; ours.
REMAINING_FRAC = 0.5


def check(budget: Budget, phases: Phases) -> Found | None:
    collecting = held(budget, "gc")
    if not collecting:
        return None
    often = phases.counts.get("gc", 0.0)
    return Found(
        summary=(
            f"The garbage collector takes {duration(collecting)} a step"
            f" ({percent(collecting / budget.step_ns)}) in {plural(often, 'collection')}."
        ),
        evidence=(
            ns("garbage collection, per step", collecting, "baseline"),
            count("collections", often, "baseline", "per_step"),
        ),
        fix=Fix(
            "import gc; gc.collect(); gc.freeze() just before the training loop.",
            "safe",
            "gc_freeze",
        ),
        gain=Gain(
            collecting * REMAINING_FRAC,
            collecting,
            "high end: no pauses; low end: half of them stay.",
            ("gc",),
        ),
    )


def fires() -> Evidence:
    step = budget(forward=10, backward=20, gc=4)
    return Evidence().add(step, phases({"gc": 0.3}, forward=10, backward=20, gc=4))


def clear() -> Evidence:
    """The collector runs, and costs nothing to speak of."""
    step = budget(forward=10, backward=20, gc=0.05)
    return Evidence().add(step, phases({"gc": 0.3}, forward=10, backward=20, gc=0.05))
