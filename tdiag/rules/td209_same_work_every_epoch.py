"""The same preprocessing repeats every epoch

## What it measures
CPU time of making samples, whether fetches draw random numbers, and the size of the whole
preprocessed dataset in memory.

## Why it is slow
Without random numbers, decoding, resizing or tokenising a sample gives the same result in every
epoch. The work repeats in every epoch, but doing it once is enough.

## What to do
Make the samples once, before training, and keep the results: in memory if they fit, else on disk.
Only random augmentation stays in the epochs.

## How the gain is computed
From the CPU time of loading samples, minus that of copying stored results; and the time that
fetches wait for storage, if the results fit in memory. It is the gain from the second epoch on; the
first takes as long as before. High end: all of it, plus other waits of the fetches if they are
shorter than their CPU time. Low end: nine tenths of it, as twins saved, without the waits if only
the first epoch was seen, because the page cache may serve later ones; nothing if the results fit
only on disk, which may be no faster.

## When this advice is wrong
A training of one epoch repeats nothing: a run that ended within its first epoch is not reported. If
tdiag ended the run, the number of epochs is unknown. A generator that is created again for each
sample is not seen. Samples of at most 10 µs are not reported, because keeping them saves nothing.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.machine import Startup, System, Threads
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases, StepHistory
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, bytes_, count, ns, text, where
from tdiag.rules.examples import GB, MB, budget, loaders, system
from tdiag.rules.feed import (
    RAM_FOR_DATA_FRAC,
    REPEATED_LOW_FRAC,
    feed_of,
    one_epoch,
    reads_once,
    share_of_rank,
)
from tdiag.rules.fetch_lines import fetch_place, top_fetch_lines
from tdiag.rules.snippets import samples_in_memory, samples_on_disk
from tdiag.units import duration, percent, size

CODE = "TD209"
NAME = "same-work-every-epoch"
CLASS = "cpu"
AFTER = {
    "TD306": "samples that stay on the device need not be copied either",
    "TD217": "without pools of threads the work may be cheap enough",
    "TD102": "reading only what is used may make a cache unnecessary",
    "TD207": "arrays instead of lists may make a cache unnecessary",
    "TD210": "a tensor instead of the table may make a cache unnecessary",
}


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    stacks: Stacks | None,
    threads: Threads | None,
    history: StepHistory | None,
    startup: Startup | None,
) -> Found | None:
    system = share_of_rank(system, threads)
    if one_epoch(history, startup):
        return None
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or fed.from_memory or fed.picked:
        return None
    if not fed.loader.dataset_len or not fed.loader.batch_bytes:
        return None
    samples = fed.loader.samples or fed.loader.batch_size
    loading = fed.cpu - fed.collate
    if not samples or loading <= MAJORITY_FRAC * fed.cpu:
        return None
    if fed.loader.random is None:
        raise Abstain("random numbers drawn in fetches were not recorded")
    if fed.loader.random:
        return None
    saved = fed.with_queueing(max(0.0, loading - fed.copying))
    each = fed.loader.batch_bytes / samples
    whole = each * fed.loader.dataset_len
    free = system.ram_available_bytes
    fits = free is not None and whole <= RAM_FOR_DATA_FRAC * free
    # Files kept in memory are not read again. The answers of a service may change.
    reading = fed.blocked if fed.loader.read_bytes and fits else 0.0
    # At best, a stored result also saves the waits within its work (for a proxy, a pipe).
    asking = fed.blocked - reading if fits and saved > fed.blocked else 0.0
    again = 0.0 if reads_once(fed.loader, fits, history) else reading
    surely, saved = saved + again, saved + reading
    at = fetch_place(fed, top_fetch_lines(fed.loader, stacks))
    spent, read = (total / fed.batches / samples for total in (loading, reading))
    waits = f" and {duration(read)} waiting for storage" if read else ""
    return Found(
        summary=(
            f"{fed.loader.dataset_class} spends {duration(spent)} on a core{waits} for each of"
            f" {fed.loader.dataset_len:,} samples{where(at)}. It draws no random numbers, so each"
            " epoch repeats the same work."
        ),
        evidence=(
            ns("loading, on a core, per sample", spent, "fetch"),
            *((ns("waiting for storage, per sample", read, "fetch"),) if read else ()),
            count("samples of the dataset", fed.loader.dataset_len, "probe"),
            text("random numbers drawn", "no", "fetch"),
            bytes_("a sample in the batch", each, "fetch"),
            bytes_("the dataset in memory", whole, "fetch"),
            *(() if free is None else (bytes_("memory available, lowest", free, "system"),)),
        ),
        fix=_fix(fed.loader, whole, free or 0, fits, where(at)),
        gain=Gain(
            fed.gain_of_saving(surely * REPEATED_LOW_FRAC) if fits else 0.0,
            fed.gain_of_saving(saved + asking),
            "from the second epoch on; high end: only copying is left; low end: "
            + (
                f"{percent(REPEATED_LOW_FRAC)} is saved."
                if fits
                else "nothing, if reading them takes as long."
            ),
            DATA_WAIT,
            fetches=True,
        ),
        at=at,
    )


def _fix(loader: Loader, whole: float, free: float, fits: bool, place: str) -> Fix:
    name = loader.dataset_class
    once = f"Make each sample of {name}{place} once and keep the result"
    if not fits:
        return Fix(
            f"{once} on disk ({size(whole)} in all).",
            "review",
            action="Keep the preprocessed samples on disk",
            code=samples_on_disk(name),
        )
    before = " Do it before the workers start, so that they share it." if loader.num_workers else ""
    return Fix(
        f"{once} in memory ({size(whole)} of {size(free)} free): that wins from the second epoch"
        f" on.{before}",
        "review",
        # Each worker would keep its own samples.
        "loader.cache" + ("+loader.num_workers=0" if loader.num_workers else ""),
        action="Keep the preprocessed samples in memory",
        code=samples_in_memory(name),
    )


def fires() -> Evidence:
    again = loaders(random=False, samples=64.0, batch_bytes=38.5 * MB)
    step = budget(data_wait_cpu=60, forward=20)
    return Evidence().add(step, again, system(ram_available_bytes=96 * GB))


def clear() -> Evidence:
    """Augmented at random: no two epochs are alike."""
    augmented = loaders(random=True, samples=64.0, batch_bytes=38.5 * MB)
    step = budget(data_wait_cpu=60, forward=20)
    return Evidence().add(step, augmented, system(ram_available_bytes=96 * GB))
