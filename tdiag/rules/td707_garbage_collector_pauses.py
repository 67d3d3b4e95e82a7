"""Garbage collection pauses training

## What it measures
Time inside Python's cyclic garbage collector on the training thread, per step; and the line that
calls for most of the collections with `gc.collect()`, if one does.

## Why it is slow
A full collection visits every live container object. A dataset held as Python lists or dicts of
millions of entries is visited again each time, though none of it is garbage.

## What to do
Remove `gc.collect()` from the loop. After set-up, call `gc.freeze()`, which exempts all live
objects from collection. Keep large data in arrays.

## How the gain is computed
High end: all pauses. Low end: if a line calls for most collections, its share of their number, with
a quarter as many by Python itself instead; otherwise half, if the loop makes new container objects.

## When this advice is wrong
Frozen objects that are dropped later are still freed by reference counting, but cycles among them
never are.
"""

from __future__ import annotations

from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Setting, Settings
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import Found, Gain, count, held, ns, where
from tdiag.rules.examples import budget, phases
from tdiag.rules.thresholds import LOW_END_FRAC, RARER_LOW_FRAC
from tdiag.units import per_step, plural

CODE = "TD707"
NAME = "garbage-collector-pauses"
CLASS = "overhead"
AFTER = {"TD213": "the collector runs after so many new objects, and each sample is a few"}


def check(budget: Budget, phases: Phases, settings: Settings | None) -> Found | None:
    collecting = held(budget, "gc")
    if not collecting:
        return None
    often = phases.counts.get("gc", 0.0)
    called = settings.last("gc.collect") if settings else None
    if called is not None and called.per_step <= MAJORITY_FRAC * often:
        called = None  # most collections are Python's own
    stay, how = 1 - LOW_END_FRAC, "half of them stay"
    if called is not None:
        asked = min(1.0, called.per_step / often)
        stay, how = 1 - asked * RARER_LOW_FRAC, "Python itself collects a quarter as often"
    return Found(
        summary=(
            f"Garbage collection takes {per_step(collecting, budget.step_ns)}:"
            f" {plural(often, 'collection')} per step."
        ),
        evidence=(
            ns("garbage collection, per step", collecting, "baseline"),
            count("collections", often, "baseline", "per_step"),
        ),
        fix=_fix(called),
        gain=Gain(
            collecting * (1 - stay),
            collecting,
            f"high end: no pauses; low end: {how}.",
            ("gc",),
        ),
        at=called.at if called else None,
    )


def _fix(called: Setting | None) -> Fix:
    """``called``: the line that causes most of the collections."""
    if called is not None:
        return Fix(
            f"Remove gc.collect(){where(called.at)} from the training loop: Python collects when it"
            " has to, and tensors are freed without it.",
            "safe",
            action="Remove gc.collect() from the training loop",
        )
    return Fix(
        "Just before the training loop, exempt all live objects from garbage collection.",
        "safe",
        "python.gc_freeze",
        action="Freeze live objects before the training loop",
        code="import gc\n\ngc.collect()\ngc.freeze()  # just before the training loop",
    )


def fires() -> Evidence:
    step = budget(forward=10, backward=20, gc=4)
    return Evidence().add(step, phases({"gc": 0.3}, forward=10, backward=20, gc=4))


def clear() -> Evidence:
    """The collector runs but costs almost nothing."""
    step = budget(forward=10, backward=20, gc=0.05)
    return Evidence().add(step, phases({"gc": 0.3}, forward=10, backward=20, gc=0.05))
