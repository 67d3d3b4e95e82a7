"""The prefetch queue runs empty in bursts

## What it measures
Single waits for a batch: most are short and some are long, while the workers' mean rate is higher
than the loop needs.

## Why it is slow
The queue holds `num_workers × prefetch_factor` batches. If some batches take much longer than the
mean, a short queue is empty before they arrive.

## What to do
Use a longer queue: raise `prefetch_factor`, at the cost of memory.

## How the gain is computed
High end: the queue never runs empty, and all waiting is gone. Low end: nothing, if slow batches
come close together.

## When this advice is wrong
With a mean rate that is too low, a longer queue only runs empty later: more workers or cheaper
preprocessing help. Batches in the queue take memory.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import DATA_WAIT, Found, Gain, bytes_, count, frac, ns, where
from tdiag.rules.examples import MS, budget, loaders, phases, system
from tdiag.rules.feed import burst_frac, feed_of
from tdiag.rules.thresholds import DEFAULT_PREFETCH, MIN_SEEN
from tdiag.units import duration, percent, plural, size

CODE = "TD204"
NAME = "prefetch-queue-runs-dry"
CLASS = "input"
AFTER = {
    "TD306": "data that stays on the device needs no queue",
    "TD105": "a longer queue hides slow samples only until it is empty",
    "TD211": "a longer queue takes even more memory",
}

SPARE_RATE_FRAC = Threshold(
    0.9, "of the loop's rate", "Heuristic: without a tenth to spare the queue cannot refill."
)
MEMORY_FRAC = Threshold(
    0.25, "of the free memory", "Heuristic: the program and the page cache need the rest."
)


def check(budget: Budget, loaders: Loaders, phases: Phases, system: System) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or not fed.loader.num_workers or len(phases.waits_ns) < MIN_SEEN:
        return None
    workers = fed.loader.num_workers
    burst, longest = burst_frac(phases.waits_ns), max(phases.waits_ns)
    steady = fed.wall / workers <= SPARE_RATE_FRAC * fed.rest
    if not steady or burst <= MAJORITY_FRAC:
        return None
    now = fed.loader.prefetch_factor or int(DEFAULT_PREFETCH)
    wanted = now + math.ceil(max(fed.loader.fetch_ns) / max(fed.rest, 1.0) / workers)
    more = (wanted - now) * workers * (fed.loader.batch_bytes or 0.0)
    if more > MEMORY_FRAC * (system.ram_available_bytes or math.inf):
        return None
    return Found(
        summary=(
            f"The loop waits for data {percent(fed.wait / fed.step)} of the step, in bursts: the"
            f" slowest tenth of the waits (up to {duration(longest)}) makes up {percent(burst)} of"
            f" it, while on average {plural(workers, 'worker')} are fast enough."
        ),
        evidence=(
            ns("data wait", fed.wait, "budget"),
            ns("longest wait", longest, "baseline"),
            frac("share of waiting in the slowest tenth", burst, "baseline"),
            ns("longest fetch", max(fed.loader.fetch_ns), "fetch"),
            count("prefetch_factor", now, "probe"),
            bytes_("memory for the longer queue", more, "fetch"),
        ),
        fix=Fix(
            f"DataLoader(..., prefetch_factor={wanted}){where(fed.loader.created_at)} instead of"
            f" {now}. The additional batches take {size(more)} of memory.",
            "review",
            f"loader.prefetch_factor={wanted}",
            action=f"Raise prefetch_factor to {wanted}",
        ),
        gain=Gain(
            0.0,
            fed.wait,
            "high end: the longer queue never runs empty; low end: nothing, if slow batches come"
            " close together.",
            DATA_WAIT,
        ),
        at=fed.loader.created_at,
    )


def fires() -> Evidence:
    bursts = replace(phases(data_wait=9, forward=40), waits_ns=(90 * MS,) * 10 + (20_000,) * 90)
    uneven = loaders(
        num_workers=2,
        prefetch_factor=2,
        fetch_ns=(40 * MS,) * 90 + (240 * MS,) * 10,
    )
    step = budget(data_wait_cpu=9, forward=40)
    return Evidence().add(step, uneven, bursts, system(cores_used=2.0))


def clear() -> Evidence:
    """All waits are alike: the workers are too slow, but the queue is long enough."""
    even = replace(phases(data_wait=9, forward=21), waits_ns=(9 * MS,) * 100)
    step = budget(data_wait_cpu=9, forward=21)
    return Evidence().add(step, loaders(num_workers=2), even, system(cores_used=2.0))
