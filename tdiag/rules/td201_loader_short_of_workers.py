"""Too few loader workers while cores idle

## What it measures
The training thread waits for batches; the fetches spend their time on a core, not on storage;
and training and fetching together do not fill the cores this process may use (affinity and
cgroup quota, not the machine's count).

## Why it is slow
With `num_workers=0` every batch is made in the training process, so the step is the *sum* of
fetching and computing. With too few workers the loop still waits for the slowest of the two.

## What to do
Make the batches in `num_workers` processes. The number is fetch time ÷ rest-of-step time, bounded
by the cores that training leaves free.

## How the gain is computed
A step cannot be shorter than the rest of the step, than one fetch ÷ workers, nor than all CPU
work ÷ the cores' capacity. High end: every further core is worth a whole one. Low end: a further
core is worth little, as on shared or hyper-threaded cores; nothing, if the fetches already queue
for a core that other programs use. What handing a batch over costs is taken off.

## When this advice is wrong
Datasets that hold CUDA tensors, open database handles or a lock do not survive a fork. Each worker
is a process with its own copy of what the dataset holds. Batches that take less than a millisecond
or so may cost more to hand over between processes than to make. Tensors in memory are better
indexed a batch at a time (TD213).
"""

from __future__ import annotations

from tdiag.evidence.data import Loader, Loaders
from tdiag.evidence.kinds import Budget, Phases, System
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import DATA_WAIT, Found, Gain, where
from tdiag.rules.examples import budget, loaders, phases, system
from tdiag.rules.feed import MAJORITY_FRAC, Feed, feed_of
from tdiag.rules.measures import count
from tdiag.units import duration, percent

CODE = "TD201"
NAME = "loader-short-of-workers"
CLASS = "cpu"
AFTER = {
    "TD102": "workers hide that most of what they read is not used, and read it all the same",
    "TD206": "workers hide a slow collate_fn, and take cores for it",
    "TD207": "workers hide work that need not be done at all",
    "TD209": "workers share out work that is the same in every epoch, and do it every time",
    "TD210": "workers hide work that need not be done at all",
    "TD706": "each further process wants cores that are already wanted twice",
}


def check(budget: Budget, loaders: Loaders, system: System, phases: Phases | None) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or fed.blocked_mostly or fed.saturates(system):
        return None
    if fed.singly > MAJORITY_FRAC * fed.cpu:
        return None  # indexing whole batches makes the work go away instead of moving it
    if fed.from_memory and fed.cpu < fed.handover(dear=True):
        return None  # picked for less than a worker's batch costs to take over
    workers = fed.workers_needed(system.cores_allowed)
    if workers <= fed.loader.num_workers:
        return None
    low, high = fed.gain_with(workers, system)
    makers = "the training process" if not fed.loader.num_workers else _count(fed.loader)
    spare = "while cores idle"
    if fed.queued_mostly:
        spare = f"and queues for a core {percent(fed.queued / fed.wall)} of that time"
    return Found(
        summary=(
            f"{percent(fed.wait / fed.step)} of the step waits for {makers} to make a batch"
            f" ({duration(fed.wall)} a step, {percent(fed.cpu / fed.wall)} of it on a core),"
            f" {spare} ({system.cores_allowed:g} cores allowed, {fed.cores_wanted():.1f} wanted)."
        ),
        evidence=(
            *fed.measures(),
            count("cores allowed", system.cores_allowed, "system", "cores"),
            count("cores wanted by fetching and training", fed.cores_wanted(), "fetch", "cores"),
        ),
        fix=Fix(_advice(fed, workers, system), "safe", f"num_workers={workers}"),
        gain=Gain(
            low,
            high,
            f"{duration(fed.wall)} of fetching ÷ {duration(fed.rest)} for the rest of the step,"
            f" on {system.cores_allowed:g} cores; low end if a further core is worth little.",
            DATA_WAIT,
        ),
        at=fed.loader.created_at,
    )


def _count(loader: Loader) -> str:
    return f"{loader.num_workers} worker" + ("s" if loader.num_workers > 1 else "")


def _advice(fed: Feed, workers: int, system: System) -> str:
    """What to write, then why that many: one batch against the step, and the cores left for it."""
    loader = fed.loader
    text = f"DataLoader(..., num_workers={workers}){where(loader.created_at)}"
    if not loader.persistent_workers:
        text += ", with persistent_workers=True so that they outlive an epoch"
    free = max(0.0, system.cores_allowed - (system.cores_used or 1.0))
    text += (
        f"; a batch takes {duration(fed.wall / fed.batches)} to load and"
        f" {duration(fed.rest / fed.batches)} to train on, and {free:.2g} of"
        f" {system.cores_allowed:g} allowed cores are free"
    )
    if loader.start_method in ("spawn", "forkserver"):
        text += "; the script's top level must then stand under `if __name__ == '__main__':`"
    return text + "."


def fires() -> Evidence:
    step = budget(data_wait_cpu=60, forward=8, backward=10, optimizer=2)
    return Evidence().add(step, loaders(), system(), phases(data_wait=60, forward=8))


def clear() -> Evidence:
    """The same fetches, but workers hide them."""
    step = budget(data_wait_cpu=0.1, forward=30, backward=40, optimizer=5)
    return Evidence().add(step, loaders(num_workers=2), system())
