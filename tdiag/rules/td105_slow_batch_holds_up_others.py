"""One slow batch delays the batches behind it

## What it measures
Single fetches of a loader that returns batches in order: a few take several times the median, and
the waits for data fall into about as few steps, while the other workers are fast enough.
## Why it is slow
With `in_order=True`, torch's default, batches that are ready wait for the slow one before them, and
so does the training thread.

## What to do
Set `in_order=False`, so that ready batches come first. Or split, cache or sort the expensive
samples so that no batch is much slower than the others.

## How the gain is computed
High end: other batches fill the slowest tenth of the waits. Low end: nothing, if slow batches come
close together.

## When this advice is wrong
Without order, runs are not reproducible bit for bit, and slow samples come later, so that an epoch
is not shuffled evenly. Torch before 2.6 has no such switch.
"""

from __future__ import annotations

import statistics

from msgspec.structs import replace

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import DATA_WAIT, Found, Gain, count, frac, ns, where
from tdiag.rules.examples import MS, budget, loaders, phases, system
from tdiag.rules.feed import burst_frac, feed_of
from tdiag.rules.thresholds import MIN_SEEN, SLOW_FRAC
from tdiag.units import duration, percent

CODE = "TD105"
NAME = "slow-batch-holds-up-others"
CLASS = "input"

SLOW_TIMES = Threshold(
    3,
    "times the median fetch",
    "PyTorch's documentation of DataLoader: a worker prefetches two batches by default; a fetch of"
    " three times the median outlasts them.",
)


def check(budget: Budget, loaders: Loaders, phases: Phases, system: System) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or fed.loader.num_workers < 2 or not fed.loader.in_order:
        return None
    fetches = fed.loader.fetch_ns
    if min(len(phases.waits_ns), len(fetches)) < MIN_SEEN:
        return None
    usual = statistics.median(fetches)
    slow = [x for x in fetches if x > SLOW_TIMES * usual]
    burst = burst_frac(phases.waits_ns)
    others = usual * fed.batches / (fed.loader.num_workers - 1)  # a step, from the other workers
    if not slow or len(slow) > SLOW_FRAC * len(fetches) or others > fed.rest:
        return None
    if burst <= MAJORITY_FRAC:
        return None
    return Found(
        summary=(
            f"{percent(len(slow) / len(fetches))} of the batches take {duration(min(slow))} or more"
            f" to fetch, the median takes {duration(usual)}. Ready batches wait behind them, and"
            f" the loop waits {percent(fed.wait / fed.step)} of the step."
        ),
        evidence=(
            ns("median fetch", usual, "fetch"),
            ns("longest fetch", max(fetches), "fetch"),
            frac("slow batches", len(slow) / len(fetches), "fetch"),
            frac("share of waiting in the slowest tenth", burst, "baseline"),
            count("num_workers", fed.loader.num_workers, "probe"),
        ),
        fix=Fix(
            f"DataLoader(..., in_order=False){where(fed.loader.created_at)}. Or cache or split the"
            f" expensive samples of {fed.loader.dataset_class}.",
            "review",
            "loader.in_order=off",
            action="Set in_order=False in the DataLoader",
        ),
        gain=Gain(
            0.0,
            fed.wait * burst,
            "high end: ready batches fill the slowest tenth of the waits; low end: nothing, if slow"
            " batches come close together.",
            DATA_WAIT,
        ),
        at=fed.loader.created_at,
    )


def fires() -> Evidence:
    return _fetches(slow_ms=240)


def clear() -> Evidence:
    """No batch takes much longer than another."""
    return _fetches(slow_ms=60)


def _fetches(slow_ms: int) -> Evidence:
    bursts = replace(phases(data_wait=9, forward=40), waits_ns=(90 * MS,) * 10 + (20_000,) * 90)
    uneven = loaders(
        num_workers=2, prefetch_factor=2, fetch_ns=(30 * MS,) * 92 + (slow_ms * MS,) * 8
    )
    step = budget(data_wait_cpu=9, forward=40)
    return Evidence().add(step, uneven, bursts, system(cores_used=2.0))
