"""A trace shows the device waiting for batches

## What it measures
In a trace alone: device idle time while the loop asks a `DataLoader` for its next batch. The name
of torch's iterator shows whether the loader has workers (`_SingleProcessDataLoaderIter`: none). If
the trace has stacks, they show which function the time goes to.

## Why it is slow
With `num_workers=0` the training process makes every batch, so the step is the *sum* of fetching
and computing. If workers are too few or too slow, the loop waits for them.

## What to do
Without workers: set `num_workers`. With them: `tdiag run` measures what their fetches do (reading,
decoding, collating) and how many are needed; a trace of the training process does not show it.

## How the gain is computed
High end: no batch is waited for. Low end, without workers: one worker, which makes a batch while
the rest of the step runs; half of that, because the profiler slows Python down. With workers:
nothing is known, so 0.

## When this advice is wrong
Datasets that hold CUDA tensors, open database handles or a lock do not survive a fork. A recording
of the first steps may show the loader's start.
"""

from __future__ import annotations

import math

from tdiag.evidence.feeding import FetchPart, Loaders, TracedFetches
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.rules.base import DATA_WAIT, Found, Gain, count, held, ns, where
from tdiag.rules.examples import budget, traced_fetches
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import percent, plural

CODE = "TD216"
NAME = "batches-awaited-in-trace"
CLASS = "input"


def check(budget: Budget, fetches: TracedFetches, loaders: Loaders | None) -> Found | None:
    waiting = held(budget, *DATA_WAIT)
    if loaders is not None or waiting < NOTICEABLE_FRAC * budget.step_ns:
        return None  # a run knows its fetches from within
    rest = budget.step_ns - waiting
    workers = math.ceil(waiting / rest) if rest > 0 else 1
    part = fetches.parts[0] if fetches.parts and fetches.workers is False else None
    low, why = 0.0, "nothing, because a trace does not show what the workers do"
    makes = "batches"
    if fetches.workers is False:
        makes = "batches that the training process makes itself (num_workers=0)"
        low = min(waiting, rest) * LOW_END_FRAC
        why = "half of what one worker hides behind the rest of the step"
    elif fetches.workers:
        makes = "its workers' batches"
    return Found(
        summary=(
            f"The device waits {percent(waiting / budget.step_ns)} of the step for {makes}"
            f"{_where_to(part, fetches.wall_ns)}."
        ),
        evidence=(
            ns("device idle, waiting for a batch", waiting, "trace"),
            ns("asking for a batch", fetches.wall_ns, "trace"),
            count("requests for a batch", fetches.count, "trace", "per_step"),
            *(ns(x.name, x.ns, "trace") for x in fetches.parts if part),
        ),
        fix=_fix(fetches, workers, part),
        gain=Gain(low, waiting, f"high end: no batch is waited for; low end: {why}.", DATA_WAIT),
        at=part.at if part else None,
    )


def _where_to(part: FetchPart | None, wall_ns: float) -> str:
    if part is None or part.ns < MAJORITY_FRAC * wall_ns:
        return ""
    return f", {percent(part.ns / wall_ns)} of that time in {part.name}"


def _fix(fetches: TracedFetches, workers: int, part: FetchPart | None) -> Fix:
    if fetches.workers is False:
        make = f" Or do less in {part.name}{where(part.at)}." if part else ""
        return Fix(
            f"DataLoader(..., num_workers={workers}): {plural(workers, 'worker')} can keep up with"
            f" the rest of the step, if as many cores are free.{make}",
            "safe",
            f"loader.num_workers={workers}",
            action="Let workers make the batches",
        )
    return Fix(
        "Raise num_workers, or make fetching cheaper. `tdiag run` on the training script measures"
        " what the fetches spend their time on.",
        "review",
        action="Feed the device faster",
    )


def fires() -> Evidence:
    return Evidence().add(budget(device=True, compute=30, data_wait=60), traced_fetches())


def clear() -> Evidence:
    """The same requests, but the device computes during them."""
    return Evidence().add(budget(device=True, compute=89, data_wait=1), traced_fetches())
