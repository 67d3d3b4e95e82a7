"""Workers are restarted every epoch

## What it measures
How often the training loader starts its workers, and the time that takes per step: the time inside
`iter(loader)`, and how much longer than usual the first and the last batch of an epoch are waited
for. And how long starts of the loaders of evaluations take.

## Why it is slow
Each epoch forks or spawns every worker, imports what it needs and fills the queue from empty, while
the training waits. At the end of the epoch it waits again until all workers have ended.

## What to do
Keep the workers between epochs: `persistent_workers=True`. A DataLoader that is made again in each
epoch starts new workers anyway: make it once, before the loop.

## How the gain is computed
High end: workers start once, and an epoch waits only for its first fetch, or for what the workers
need longer than the rest of the step. If an epoch has at most two steps, the whole step but the
least time for its work: the steps after a start share their cores with workers that start or end,
and the training process copies each page of memory that it shares with them before it writes to it.
Low end: of the time for starting, an epoch still waits for one whole fetch, because the queue is
empty at its start; half of that time, if fetches were not timed. Of evaluations: the starts,
without one fetch each; high end: all that they take beyond their forward passes.

## When this advice is wrong
Persistent workers keep the dataset as it was when they started. If the training changes the dataset
between epochs (a curriculum, new sampling weights), they do not see the change.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import DATA_WAIT, MODEL_PHASES, Found, Gain, count, held, ns, where
from tdiag.rules.examples import MS, budget, loaders, phases
from tdiag.rules.feed import batches_per_step
from tdiag.rules.fixed_cost import best_of_step_ns
from tdiag.units import duration, percent, plural

CODE = "TD203"
NAME = "workers-restarted"
CLASS = "loader"

MIN_STARTS = Threshold(
    2, "starts", "The first start cannot be avoided; the second shows that epochs restart workers."
)
REFILL_FRAC = Threshold(
    0.5,
    "of the time for starting workers",
    "Heuristic, if fetches were not timed: half stays, because the queue is still filled at the"
    " start of each epoch.",
)


MOST_STEPS = Threshold(
    2,
    "steps in an epoch",
    "Heuristic: in longer epochs most steps do not follow a start, which slows down the first.",
)


def check(
    budget: Budget, loaders: Loaders, phases: Phases, work: Work | None, roof: Roof | None
) -> Found | None:
    loader = loaders.train()
    starting = phases.iterator_start_ns
    if loader is None or not starting or not _restarts(loader):
        return None
    starts = len(loader.worker_start_ns)
    each = sum(loader.worker_start_ns) / starts
    high = max(starting, held(budget, *DATA_WAIT) - _unavoidable(loader, budget, phases))
    all_steps = not budget.has_device and _epochs(loader, phases) >= 1 / MOST_STEPS
    if all_steps:
        high = max(high, budget.step_ns - (best_of_step_ns(work, roof) or 0.0))
    evaluating = [x for x in loaders.loaders if x.role == "eval" and _restarts(x)]
    least, most = _in_evaluations(evaluating, loader, budget, phases)
    costs = starting + least
    also = f", with {duration(least)} a step in evaluations" if least else ""
    return Found(
        summary=(
            f"Restarting {plural(loader.num_workers, 'worker')} every epoch costs {duration(each)},"
            f" {percent(costs / budget.step_ns)} of the training time ({starts} starts seen{also})."
        ),
        evidence=(
            ns("starting and ending workers, per step", starting, "baseline"),
            ns("one start", each, "probe"),
            count("starts", starts, "probe"),
            count("num_workers", loader.num_workers, "probe"),
            *((ns("starting those of evaluations, per step", least, "probe"),) if least else ()),
        ),
        fix=_fix(loader, evaluating),
        gain=Gain(
            starting - _refilling(loader, phases, starting) + least,
            high if all_steps else high + most,
            "high end: workers start only once"
            + (", and no step computes right after a start" if all_steps else "")
            + (", and an evaluation takes as long as its forward passes" if least else "")
            + "; low end: each epoch still begins with an empty queue, and waits for one fetch.",
            (*DATA_WAIT, *(MODEL_PHASES if all_steps else ()), *(("evaluation",) if least else ())),
        ),
        at=loader.created_at,
    )


def _restarts(loader: Loader) -> bool:
    kept = loader.persistent_workers and loader.made == 1
    return bool(loader.num_workers) and not kept and len(loader.worker_start_ns) >= MIN_STARTS


def _in_evaluations(
    evaluating: Sequence[Loader], loader: Loader, budget: Budget, phases: Phases
) -> tuple[float, float]:
    """What starting the workers of evaluations takes, ns per step: their starts alone, without one
    fetch each; and all that evaluations take beyond their forward passes, as long as those of the
    training."""
    evaluation = held(budget, "evaluation")
    epochs, starts = _epochs(loader, phases), len(loader.worker_start_ns)
    least = 0.0
    for one in evaluating:
        each = sum(one.worker_start_ns) / len(one.worker_start_ns)
        fetch = (one.load_ns or 0.0) + (one.collate_ns or 0.0)
        least += max(0.0, each - fetch) * epochs * len(one.worker_start_ns) / starts
    least = min(least, evaluation)
    if not least:
        return 0.0, 0.0
    passes = phases.eval_batches_per_step / max(1.0, batches_per_step(phases, loader))
    return least, max(least, evaluation - passes * held(budget, "forward"))


def _fix(loader: Loader, evaluating: Sequence[Loader]) -> Fix:
    also = "".join(where(x.created_at) for x in evaluating if x.created_at != loader.created_at)
    call = f"DataLoader(..., num_workers={loader.num_workers}, persistent_workers=True)"
    if loader.made > 1:
        return Fix(
            f"Make the DataLoader{where(loader.created_at)} once, before the loop over the epochs:"
            f" {call}. Its workers end with it, and {loader.made} were made one after the other."
            f"{f' The same for evaluations{also}.' if also else ''}",
            "review",
            action="Make the DataLoader once, before the loop over the epochs",
        )
    return Fix(
        f"{call}{where(loader.created_at)}.{f' The same for evaluations{also}.' if also else ''}",
        "review",
        "loader.persistent_workers",
        action="Keep the workers between epochs",
    )


def _unavoidable(loader: Loader, budget: Budget, phases: Phases) -> float:
    """The wait that remains with persistent workers, ns per step; all of it if fetches were not
    timed."""
    waiting = held(budget, *DATA_WAIT)
    if loader.load_ns is None:
        return waiting
    fetch = loader.load_ns + (loader.collate_ns or 0.0)
    batches = batches_per_step(phases, loader)
    return max(
        _epochs(loader, phases) * fetch,
        batches * fetch / loader.num_workers - (budget.step_ns - waiting),
    )


def _refilling(loader: Loader, phases: Phases, starting: float) -> float:
    """What remains of ``starting``, ns per step: the queue is empty at the start of each epoch."""
    if loader.load_ns is None:
        return starting * REFILL_FRAC
    return min(starting, _epochs(loader, phases) * (loader.load_ns + (loader.collate_ns or 0.0)))


def _epochs(loader: Loader, phases: Phases) -> float:
    """Per step: an epoch begins with iter(loader) and ends with a request that brings no batch."""
    batches = batches_per_step(phases, loader)
    return max(0.0, phases.counts.get("data_wait", 1.0) - batches) / 2


def fires() -> Evidence:
    clean = replace(phases(data_wait=12, forward=30), iterator_start_ns=10 * MS)
    restarted = loaders(num_workers=2, worker_start_ns=(400 * MS,) * 5)
    return Evidence().add(budget(data_wait=12, forward=30), clean, restarted)


def clear() -> Evidence:
    """The same loader with persistent workers."""
    clean = replace(phases(data_wait=1, forward=30), iterator_start_ns=0.1 * MS)
    kept = loaders(num_workers=2, persistent_workers=True, worker_start_ns=(400 * MS,))
    return Evidence().add(budget(data_wait=1, forward=30), clean, kept)
