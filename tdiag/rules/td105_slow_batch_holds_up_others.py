"""One slow batch holds up those behind it

## What it measures
Single fetches of a loader that hands batches over in order: a few of them take several times as
long as the median, and the waits for data lie in about as few steps, while the other workers are
fast enough by themselves.

## Why it is slow
With `in_order=True`, torch's default, batches that are ready wait for the slow one before them, and
the training thread with them.

## What to do
`in_order=False`, so that whatever is ready comes first; or split, cache or sort the heavy samples
so that no batch is much slower than the next.

## How the gain is computed
High end: the waiting of the slowest tenth of the waits, which the others' batches fill. Low end:
nothing, if slow batches come close together.

## When this advice is wrong
Without order, runs cannot be repeated bit for bit, and slow samples come later than fast ones, so
that an epoch is not shuffled evenly. Torch before 2.6 has no such switch.
"""

from __future__ import annotations

import statistics

from msgspec.structs import replace

from tdiag.evidence.data import Loaders
from tdiag.evidence.kinds import Budget, Phases, System
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import DATA_WAIT, Found, Gain, where
from tdiag.rules.examples import MS, budget, loaders, phases, system
from tdiag.rules.feed import feed_of
from tdiag.rules.measures import count, frac, ns
from tdiag.units import duration, percent

CODE = "TD105"
NAME = "slow-batch-holds-up-others"
CLASS = "input"

# From three times the median a fetch outlasts the two batches that each worker fetches ahead by
# default (DataLoader's documentation): the queue cannot cover it.
SLOW_TIMES = 3.0
# Slow batches must be the exception: at most a tenth of them, and of the waits.
SLOW_FRAC = 0.1
# That tenth of the waits holds more than half of all waiting: by definition of "mostly".
BURST_FRAC = 0.5
# Fewer fetches or waits have no tenth to speak of.
MIN_SEEN = 20


def check(budget: Budget, loaders: Loaders, phases: Phases, system: System) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or fed.loader.num_workers < 2 or not fed.loader.in_order:
        return None
    waits, fetches = sorted(phases.waits_ns, reverse=True), fed.loader.fetch_ns
    if min(len(waits), len(fetches)) < MIN_SEEN:
        return None
    usual = statistics.median(fetches)
    slow = [x for x in fetches if x > SLOW_TIMES * usual]
    burst = sum(waits[: max(1, round(len(waits) * SLOW_FRAC))])
    others = usual * fed.batches / (fed.loader.num_workers - 1)  # a step, from the other workers
    if not slow or len(slow) > SLOW_FRAC * len(fetches) or others > fed.rest:
        return None
    if burst <= BURST_FRAC * sum(waits):
        return None
    return Found(
        summary=(
            f"{percent(len(slow) / len(fetches))} of the batches take {duration(min(slow))} or more"
            f" to fetch, the median {duration(usual)}: in order, the others wait behind them,"
            f" and the loop waits {percent(fed.wait / fed.step)} of the step."
        ),
        evidence=(
            ns("median fetch", usual, "fetch"),
            ns("longest fetch", max(fetches), "fetch"),
            frac("slow batches", len(slow) / len(fetches), "fetch"),
            frac("share of waiting in the slowest tenth", burst / sum(waits), "baseline"),
            count("num_workers", fed.loader.num_workers, "probe"),
        ),
        fix=Fix(
            f"DataLoader(..., in_order=False){where(fed.loader.created_at)}; or cache or split the"
            f" heavy samples of {fed.loader.dataset_class}.",
            "review",
        ),
        gain=Gain(
            0.0,
            fed.wait * burst / sum(waits),
            "high end: batches that are ready fill the slowest tenth of the waits; low end: slow"
            " batches come together.",
            DATA_WAIT,
        ),
        at=fed.loader.created_at,
    )


def fires() -> Evidence:
    return _fetches(slow_ms=240)


def clear() -> Evidence:
    """No batch takes much longer than the next."""
    return _fetches(slow_ms=60)


def _fetches(slow_ms: int) -> Evidence:
    bursts = replace(phases(data_wait=9, forward=40), waits_ns=(90 * MS,) * 10 + (20_000,) * 90)
    uneven = loaders(
        num_workers=2, prefetch_factor=2, fetch_ns=(30 * MS,) * 92 + (slow_ms * MS,) * 8
    )
    step = budget(data_wait_cpu=9, forward=40)
    return Evidence().add(step, uneven, bursts, system(cores_used=2.0))
