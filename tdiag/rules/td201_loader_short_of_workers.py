"""Too few DataLoader workers while cores idle

## What it measures
The training thread waits for batches; the fetches spend their time on a core, not on storage; and
training and fetching together do not fill the available cores (affinity and cgroup quota, not the
machine's count).

## Why it is slow
With `num_workers=0` the training process makes every batch, so the step is the *sum* of fetching
and computing. With too few workers, the loop waits for the slower of the two.

## What to do
Set `num_workers` to fetch time ÷ rest-of-step time, at most the cores that training leaves free.

## How the gain is computed
A step cannot be shorter than its rest, than one fetch ÷ workers, nor than all CPU work ÷ cores.
Processes that compute at once, in a short test after the run, measure what each further core adds:
two hardware threads of one core do less than two cores. High end: the most of three kinds of work.
Low end: the least, and nothing for the second core, or if fetches already queue for a core that
other programs use. Without that test: a whole core, and next to nothing. The cost of taking batches
from another process is subtracted.

## When this advice is wrong
Datasets that hold CUDA tensors, open database handles or a lock do not survive a fork. Each worker
has its own copy of the dataset's contents, and reads the whole of a stream unless that is divided.
Batches that take less than about a millisecond may cost more to hand over than to make. Tensors in
memory are better indexed a batch at a time (TD213).
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import DATA_WAIT, Found, Gain, count, frac, where
from tdiag.rules.examples import budget, loaders, phases, system
from tdiag.rules.feed import Feed, feed_of, free_cores, main_guard, share_of_rank, share_of_stream
from tdiag.units import duration, percent, plural

CODE = "TD201"
NAME = "loader-short-of-workers"
CLASS = "cpu"
AFTER = {
    "TD230": "more workers would each make all samples",
    "TD229": "the work may be cheap enough without repetitions",
    "TD306": "data that stays on the device needs no workers",
    "TD217": "more workers start more pools of threads",
    "TD102": "workers hide unnecessary reads and still do them",
    "TD206": "workers hide a slow collate_fn and take cores for it",
    "TD207": "workers hide work that need not be done",
    "TD209": "workers share work that repeats every epoch and still repeat it",
    "TD210": "workers hide work that need not be done",
    "TD220": "workers only hide the work of decoding unneeded pixels",
    "TD218": "workers spread the work of one line and still do it",
    "TD706": "the cores are already oversubscribed, and each worker adds a process",
    "TD723": "fetches wait for the interpreter that another thread holds",
}


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    threads: Threads | None,
) -> Found | None:
    system = share_of_rank(system, threads)
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or fed.blocked_mostly or fed.saturates(system):
        return None
    if fed.singly > MAJORITY_FRAC * fed.cpu:
        return None  # indexing whole batches removes the work instead of moving it
    if fed.from_memory and fed.cpu < fed.handover(slow_core=True):
        return None  # picking costs less than taking a batch from a worker
    workers = fed.workers_needed(system.cores_allowed)
    if workers <= fed.loader.num_workers:
        return None
    low, high = fed.gain_with(workers, system)
    count_now = fed.loader.num_workers
    makers = plural(count_now, "worker") if count_now else "the training process"
    spare = ", while cores idle"
    if fed.queued_mostly:
        spare = f"; the fetch queues for a core {percent(fed.queued / fed.wall)} of that time"
    return Found(
        summary=(
            f"{percent(fed.wait / fed.step)} of the step waits for {makers} to make a batch"
            f" ({duration(fed.wall)} per step, {percent(fed.cpu / fed.wall)} of it on a core)"
            f"{spare} ({fed.cores_wanted():.1f} of {system.cores_allowed:g} cores needed)."
        ),
        evidence=(
            *fed.measures(),
            count("cores available to each rank", system.cores_allowed, "system", "cores")
            if threads and threads.processes > 1
            else count("cores available", system.cores_allowed, "system", "cores"),
            count("cores needed by fetching and training", fed.cores_wanted(), "fetch", "cores"),
            *_further_core(system),
        ),
        fix=Fix(
            _advice(fed, workers, system),
            "review" if share_of_stream(fed.loader) else "safe",
            f"loader.num_workers={workers}",
            action=f"Raise num_workers to {workers}",
        ),
        gain=Gain(
            low,
            high,
            f"high end: workers fetch ({duration(fed.wall)}) in parallel with the rest of the"
            f" step ({duration(fed.rest)}), on {system.cores_allowed:g} cores; low end: another"
            " core adds little.",
            DATA_WAIT,
        ),
        at=fed.loader.created_at,
    )


def _further_core(system: System) -> tuple[Measure, ...]:
    if system.further_core is None:
        return ()
    return (frac("each further core adds at most, of the first", system.further_core[1], "system"),)


def _advice(fed: Feed, workers: int, system: System) -> str:
    """What to write, and why this number."""
    loader = fed.loader
    text = (
        f"DataLoader(..., num_workers={workers}){where(loader.created_at)}. A batch takes"
        f" {duration(fed.wall / fed.batches)} to load and {duration(fed.rest / fed.batches)} to"
        f" train on, and {free_cores(system)} are free."
    )
    if not loader.persistent_workers:
        text += " Add persistent_workers=True to keep the workers between epochs."
    return text + share_of_stream(loader) + main_guard(loader)


def fires() -> Evidence:
    step = budget(data_wait_cpu=60, forward=8, backward=10, optimizer=2)
    return Evidence().add(step, loaders(), system(), phases(data_wait=60, forward=8))


def clear() -> Evidence:
    """The same fetches, but workers hide them."""
    step = budget(data_wait_cpu=0.1, forward=30, backward=40, optimizer=5)
    return Evidence().add(step, loaders(num_workers=2), system())
