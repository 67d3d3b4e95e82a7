"""The same preprocessing is done in every epoch

## What it measures
CPU time of making samples, whether fetches drew random numbers, and what the whole dataset takes in
memory as it comes out of it.

## Why it is slow
Decoding, resizing or tokenising a sample gives the same result in every epoch where nothing is
drawn at random: it is paid as often as there are epochs, and once would do.

## What to do
Keep the results: in a tensor in shared memory where they fit, else on disk, as a memory-mapped
array. Do it once, before the training, and leave only what is random to the epochs.

## How the gain is computed
From the CPU time of loading samples, from the second epoch on, less that of copying what was kept,
and the time for which fetches wait for storage if the results fit in memory. High end: all of it,
in a long training. Low end: half of it, in a training of two epochs; nothing if the results only
fit on a disk, which may be no faster than making them.

## When this advice is wrong
Samples of at most 10 µs each: what is kept has to be picked, too, and this rule stays silent. A
training of one epoch, or one whose samples differ by a generator that is made anew for each
sample, which is not seen.
"""

from __future__ import annotations

from tdiag.evidence.data import Loader, Loaders
from tdiag.evidence.kinds import Budget, Phases, Stacks, System
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix, Measure
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, where
from tdiag.rules.examples import GB, MB, budget, loaders, system
from tdiag.rules.feed import RAM_FOR_DATA_FRAC, Feed, feed_of
from tdiag.rules.fetch_lines import dataset_place, top_fetch_lines
from tdiag.rules.measures import bytes_, count, ns, text
from tdiag.rules.shares import MOSTLY_FRAC
from tdiag.units import duration, size

CODE = "TD209"
NAME = "same-work-every-epoch"
CLASS = "cpu"
AFTER = {
    "TD102": "reading only what is used may make the work small enough to stay",
    "TD207": "arrays instead of lists may make the work small enough to stay",
    "TD210": "a tensor instead of the table may make the work small enough to stay",
}

# Of two epochs, the first still has all the work: the least that a cache can win.
TWO_EPOCHS_FRAC = 0.5


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    stacks: Stacks | None,
) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or fed.from_memory or fed.picked:
        return None
    if not fed.loader.dataset_len or not fed.loader.batch_bytes:
        return None
    samples = fed.loader.samples or fed.loader.batch_size
    loading = fed.cpu - fed.collate
    if not samples or loading <= MOSTLY_FRAC * fed.cpu:
        return None
    if fed.loader.random is None:
        raise Abstain("whether fetches draw random numbers was not seen")
    if fed.loader.random:
        return None
    saved = fed.with_queueing(max(0.0, loading - fed.copying))
    each = fed.loader.batch_bytes / samples
    whole = each * fed.loader.dataset_len
    # What is kept in memory need not be read again. What a service answers may change.
    reading = fed.blocked if fed.loader.read_bytes and _fits(whole, system) else 0.0
    saved += reading
    lines = top_fetch_lines(fed, stacks)
    at = lines[0].at if lines else dataset_place(fed.loader)
    spent, read = (total / fed.batches / samples for total in (loading, reading))
    waits = f" and {duration(read)} waiting for storage" if read else ""
    return Found(
        summary=(
            f"{fed.loader.dataset_class} spends {duration(spent)} on a core{waits} for each of"
            f" {fed.loader.dataset_len} samples{where(at)}, draws nothing at random, and so does"
            " the same work in every epoch."
        ),
        evidence=(
            ns("loading, on a core, per sample", spent, "fetch"),
            *((ns("waiting for storage, per sample", read, "fetch"),) if read else ()),
            count("samples of the dataset", fed.loader.dataset_len, "probe"),
            text("random numbers drawn", "no", "fetch"),
            bytes_("a sample in the batch", each, "fetch"),
            bytes_("the dataset in memory", whole, "fetch"),
            *_free(system),
        ),
        fix=Fix(_advice(fed, whole, system) + where(at) + ".", "review"),
        gain=Gain(
            fed.gain_of_saving(saved * TWO_EPOCHS_FRAC) if _fits(whole, system) else 0.0,
            fed.gain_of_saving(saved),
            "high end: a training of many epochs; low end: of two, or a disk that is no faster.",
            DATA_WAIT,
        ),
        at=at,
    )


def _fits(whole: float, system: System) -> bool:
    """The whole dataset, as it comes out of the fetch, may stay in memory."""
    return whole <= RAM_FOR_DATA_FRAC * (system.ram_available_bytes or 0.0)


def _free(system: System) -> tuple[Measure, ...]:
    free = system.ram_available_bytes
    return () if free is None else (bytes_("memory available, lowest", free, "system"),)


def _advice(fed: Feed, whole: float, system: System) -> str:
    loader, free = fed.loader, system.ram_available_bytes
    once = f"Do the work of {loader.dataset_class} once and keep its results"
    if free is not None and _fits(whole, system):
        where_to = f"in a tensor in memory ({size(whole)} of {size(free)} free)"
        if loader.num_workers:
            where_to += ", made before the workers start and shared: .share_memory_()"
    else:
        where_to = f"on disk, as a memory-mapped array of {size(whole)}"
    return f"{once} {where_to}, instead of{_work(loader)}"


def _work(loader: Loader) -> str:
    return f" {loader.dataset_at.function}" if loader.dataset_at else " every sample's work"


def fires() -> Evidence:
    again = loaders(random=False, samples=64.0, batch_bytes=38.5 * MB)
    step = budget(data_wait_cpu=60, forward=20)
    return Evidence().add(step, again, system(ram_available_bytes=96 * GB))


def clear() -> Evidence:
    """Augmented at random: no two epochs see the same."""
    augmented = loaders(random=True, samples=64.0, batch_bytes=38.5 * MB)
    step = budget(data_wait_cpu=60, forward=20)
    return Evidence().add(step, augmented, system(ram_available_bytes=96 * GB))
