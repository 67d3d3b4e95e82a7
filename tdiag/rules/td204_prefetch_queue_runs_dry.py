"""The prefetch queue runs dry in bursts

## What it measures
Single waits for a batch: most are short, some are long, while the workers' mean rate is higher
than the loop needs.

## Why it is slow
The queue holds `num_workers × prefetch_factor` batches. When some batches take much longer to
fetch than the mean, a short queue is empty before the slow batch arrives, and nothing makes up for
it later.

## What to do
A longer queue: `prefetch_factor`, with the memory that it costs.

## How the gain is computed
High end: the queue never runs dry, all waiting is gone. Low end: nothing, if slow batches come
close together.

## When this advice is wrong
If the mean rate is too low, a longer queue runs dry as well, only later: that is for more workers
or cheaper preprocessing. Batches in the queue take memory.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from tdiag.evidence.data import Loaders
from tdiag.evidence.kinds import Budget, Phases, System
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import DATA_WAIT, Found, Gain, where
from tdiag.rules.examples import MS, budget, loaders, phases, system
from tdiag.rules.feed import feed_of
from tdiag.rules.measures import bytes_, count, frac, ns
from tdiag.units import duration, percent, plural, size

CODE = "TD204"
NAME = "prefetch-queue-runs-dry"
CLASS = "input"
AFTER = {
    "TD105": "a longer queue hides the slow samples until it runs dry",
    "TD211": "the queue is what fills the memory",
}

# Torch's default when there are workers (DataLoader's documentation).
DEFAULT_PREFETCH = 2
# The workers' mean rate must leave a tenth to spare, or the queue could not refill in between.
SPARE_RATE_FRAC = 0.9
# Bursts: the slowest tenth of the waits holds more than half of all waiting.
SLOW_WAITS_FRAC = 0.1
BURST_FRAC = 0.5
# Fewer waits have no tenth to speak of.
MIN_WAITS = 20
# Batches in flight may take this share of the free memory; ours.
MEMORY_FRAC = 0.25


def check(budget: Budget, loaders: Loaders, phases: Phases, system: System) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    waits = sorted(phases.waits_ns, reverse=True)
    if fed is None or not fed.loader.num_workers or len(waits) < MIN_WAITS:
        return None
    workers = fed.loader.num_workers
    slow = sum(waits[: max(1, round(len(waits) * SLOW_WAITS_FRAC))])
    steady = fed.wall / workers <= SPARE_RATE_FRAC * fed.rest
    if not steady or slow <= BURST_FRAC * sum(waits):
        return None
    now = fed.loader.prefetch_factor or DEFAULT_PREFETCH
    wanted = now + math.ceil(max(fed.loader.fetch_ns) / max(fed.rest, 1.0) / workers)
    more = (wanted - now) * workers * (fed.loader.batch_bytes or 0.0)
    if more > MEMORY_FRAC * (system.ram_available_bytes or math.inf):
        return None
    return Found(
        summary=(
            f"The loop waits for data {percent(fed.wait / fed.step)} of the step, in bursts: the"
            f" slowest tenth of the waits (up to {duration(waits[0])}) holds"
            f" {percent(slow / sum(waits))} of it, while on average"
            f" {plural(workers, 'worker')} would do."
        ),
        evidence=(
            ns("data wait", fed.wait, "budget"),
            ns("longest wait", waits[0], "baseline"),
            frac("share of waiting in the slowest tenth", slow / sum(waits), "baseline"),
            ns("longest fetch", max(fed.loader.fetch_ns), "fetch"),
            count("prefetch_factor", now, "probe"),
            bytes_("memory for the longer queue", more, "fetch"),
        ),
        fix=Fix(
            f"DataLoader(..., prefetch_factor={wanted}){where(fed.loader.created_at)} instead of"
            f" {now}; the further batches take {size(more)} of memory.",
            "review",
            f"prefetch_factor={wanted}",
        ),
        gain=Gain(
            0.0,
            fed.wait,
            "high end: the queue outlasts every slow batch; low end: slow batches come together.",
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
    """Every wait is as long as the next: the workers are too slow, the queue is not too short."""
    even = replace(phases(data_wait=9, forward=21), waits_ns=(9 * MS,) * 100)
    step = budget(data_wait_cpu=9, forward=21)
    return Evidence().add(step, loaders(num_workers=2), even, system(cores_used=2.0))
