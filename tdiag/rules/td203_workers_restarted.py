"""Workers are started again for every pass over the data

## What it measures
Time inside `iter(loader)`, per step, and what a pass's first and last request for a batch take
beyond the usual wait, of a training loader with worker processes that do not outlive a pass; and
how often its workers were started.

## Why it is slow
Each start forks or spawns every worker, imports and copies what it needs, and fills the queue from
empty, while the training thread waits; at the end of the pass it waits for all of them to end.

## What to do
Keep the workers between passes: `persistent_workers=True`.

## How the gain is computed
High end: no start after the first, and no other wait than for the first fetch of a pass, or for
what the workers' fetches take longer than the rest of the step: workers that live on are warm. Low
end: they still have to fill their queue at each pass, so that half of the starts' time stays.

## When this advice is wrong
Workers that live on keep the dataset as it was when they started: a dataset that the training
process changes between epochs (a curriculum, new sampling weights) would not be seen.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.kinds import Budget, Loader, Loaders, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import DATA_WAIT, Found, Gain, held, where
from tdiag.rules.examples import MS, budget, loaders, phases
from tdiag.rules.measures import count, ns
from tdiag.units import duration, percent, plural

CODE = "TD203"
NAME = "workers-restarted"
CLASS = "loader"

# The first start cannot be avoided; the second shows the habit.
MIN_STARTS = 2
# What filling the queue anew at each pass may keep of the time; ours.
REFILL_FRAC = 0.5


def check(budget: Budget, loaders: Loaders, phases: Phases) -> Found | None:
    loader = loaders.train()
    starting = phases.iterator_start_ns
    if loader is None or not loader.num_workers or loader.persistent_workers or not starting:
        return None
    starts = len(loader.worker_start_ns)
    if starts < MIN_STARTS:
        return None
    each = sum(loader.worker_start_ns) / starts
    return Found(
        summary=(
            f"Starting and ending {plural(loader.num_workers, 'worker')} at every pass over the"
            f" data takes {percent(starting / budget.step_ns)} of the training time"
            f" ({duration(each)} a start, {starts} starts seen)."
        ),
        evidence=(
            ns("starting and ending workers, per step", starting, "baseline"),
            ns("one start", each, "probe"),
            count("starts", starts, "probe"),
            count("num_workers", loader.num_workers, "probe"),
        ),
        fix=Fix(
            f"DataLoader(..., num_workers={loader.num_workers}, persistent_workers=True)"
            f"{where(loader.created_at)}.",
            "review",
            "persistent_workers",
        ),
        gain=Gain(
            starting * REFILL_FRAC,
            max(starting, held(budget, *DATA_WAIT) - _unavoidable(loader, budget, phases)),
            "high end: no start after the first, and warm workers keep up where their fetches let"
            " them; low end: the queue is still filled at each pass.",
            DATA_WAIT,
        ),
        at=loader.created_at,
    )


def _unavoidable(loader: Loader, budget: Budget, phases: Phases) -> float:
    """The wait that workers which live on leave, ns per step; all where fetches were not timed."""
    waiting = held(budget, *DATA_WAIT)
    if loader.load_ns is None:
        return waiting
    fetch = loader.load_ns + (loader.collate_ns or 0.0)
    asked = phases.counts.get("data_wait", 1.0)
    batches = max(1.0, round(asked))
    passes = max(0.0, asked - batches)  # a pass ends with a request that brings no batch
    return max(passes * fetch, batches * fetch / loader.num_workers - (budget.step_ns - waiting))


def fires() -> Evidence:
    clean = replace(phases(data_wait=12, forward=30), iterator_start_ns=10 * MS)
    restarted = loaders(num_workers=2, worker_start_ns=(400 * MS,) * 5)
    return Evidence().add(budget(data_wait=12, forward=30), clean, restarted)


def clear() -> Evidence:
    """The same loader with workers that live on."""
    clean = replace(phases(data_wait=1, forward=30), iterator_start_ns=0.1 * MS)
    kept = loaders(num_workers=2, persistent_workers=True, worker_start_ns=(400 * MS,))
    return Evidence().add(budget(data_wait=1, forward=30), clean, kept)
