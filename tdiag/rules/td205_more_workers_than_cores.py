"""More workers than cores

## What it measures
Worker processes of the training loader against the available cores, and the share of the fetch time
for which they queue for a core.

## Why it is slow
Workers beyond the cores do not fetch faster: they compete with each other and with the training
thread, and each holds its own memory and batches in flight.

## What to do
Use at most as many workers as available cores, minus the cores that training keeps busy.

## How the gain is computed
No gain is claimed: the cost for the training thread was not measured.

## When this advice is wrong
Workers that mostly wait for storage need no core. More workers than cores are then right and are
not reported.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, count, frac, where
from tdiag.rules.examples import budget, loaders, system
from tdiag.rules.feed import feed_of, share_of_rank
from tdiag.units import percent

CODE = "TD205"
NAME = "more-workers-than-cores"
CLASS = "loader"

QUEUED_FRAC = Threshold(
    0.25, "of the fetch time", "Heuristic: a quarter of the time spent queueing is too few cores."
)


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    threads: Threads | None,
) -> Found | None:
    system = share_of_rank(system, threads)
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or fed.blocked_mostly:
        return None
    workers, queued = fed.loader.num_workers, fed.queued / fed.wall
    if workers <= system.cores_allowed or queued < QUEUED_FRAC:
        return None
    enough = max(1, min(fed.workers_free(system.cores_allowed), int(system.cores_allowed) - 1))
    return Found(
        summary=(
            f"{workers} workers share {system.cores_allowed:g} cores: they queue for a core"
            f" {percent(queued)} of the fetch time."
        ),
        evidence=(
            count("num_workers", workers, "probe"),
            count("cores available", system.cores_allowed, "system", "cores"),
            frac("fetch time waiting for a core", queued, "fetch"),
        ),
        fix=Fix(
            f"DataLoader(..., num_workers={enough}){where(fed.loader.created_at)}.",
            "safe",
            f"loader.num_workers={enough}",
            action=f"Lower num_workers to {enough}",
        ),
        at=fed.loader.created_at,
    )


def fires() -> Evidence:
    crowd = loaders(num_workers=8, load_ns=200e6, load_cpu_ns=50e6, runqueue_ns=150e6)
    step = budget(data_wait_cpu=10, forward=20)
    return Evidence().add(step, crowd, system(cores_allowed=2.0, cores_used=1.98))


def clear() -> Evidence:
    """The same workers wait for storage and need no core."""
    waiting = loaders(num_workers=8, load_ns=200e6, load_cpu_ns=10e6, read_bytes=20e6)
    step = budget(data_wait_io=10, forward=20)
    return Evidence().add(step, waiting, system(cores_allowed=2.0, cores_used=1.0))
