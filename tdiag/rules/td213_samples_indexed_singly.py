"""Tensors in memory are indexed one sample at a time

## What it measures
The training thread waits for batches of a dataset that lies in memory (`TensorDataset`, a tensor,
a list, or a class of your own whose samples take at most 10 µs each to load), which torch picks
sample by sample and puts together again; more of the fetching thread's time on a core than copying
the batch's bytes once takes.

## Why it is slow
Each sample costs a few microseconds of Python for the indexing and the collating, however small it
is: a batch of 256 pays that 256 times to copy a few kilobytes.

## What to do
Index whole batches: a `BatchSampler` as the *sampler*, and `batch_size=None`, so that
`TensorDataset` gets a list of indices and answers with one call per tensor. Order and values of the
batches stay the same, bit for bit. A class of your own gets that list in its `__getitem__`: tensors
and arrays take it as an index just like a number. Code that reckons with the index needs an array
of it: windows `self.data[i : i + 96]` become `self.data[np.asarray(i)[:, None] + np.arange(96)]`.
Of a Python list, make a tensor once.

## How the gain is computed
From the fetch's time on a core, less what copying the batch takes. Of that, where it was tried,
42 % (batches of 16) to 96 % (batches of 256) was won, by a class of your own nothing (batches of
16) to 87 %; and as much of the garbage collections in it, which the samples' objects bring about.
High end: 96 % and all of those, and if fetches queue for a core, they queue as much less.

## When this advice is wrong
Large samples, such as images of 100 kB, are bound by copying: one call that gathers them is no
faster than stacking them, and this rule stays silent. A collate function or transform of your own
must then work on whole batches. An `IterableDataset` has nothing to index.
"""

from __future__ import annotations

from tdiag.evidence.data import Loader, Loaders
from tdiag.evidence.kinds import Budget, Phases, System
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, where
from tdiag.rules.examples import budget, loaders, system
from tdiag.rules.feed import feed_of
from tdiag.rules.measures import bytes_, count, ns
from tdiag.units import duration, percent, size

CODE = "TD213"
NAME = "samples-indexed-singly"
CLASS = "cpu"

# Won of the time that goes by the number of samples, TensorDataset on one core with torch 2.13:
# 0.42 (16 rows of 10 numbers) to 0.96 (256 rows of 784).
SAVING_LOW_FRAC = 0.42
SAVING_HIGH_FRAC = 0.96
# A class of one's own that holds tensors or arrays won 0.41 to 0.87 with batches of 64 to 256, but
# tensors in batches of 16 between next to nothing and 0.46.
OWN_SAVING_LOW_FRAC = 0.0


def check(budget: Budget, loaders: Loaders, system: System, phases: Phases | None) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or fed.blocked_mostly or not fed.from_memory:
        return None
    batch = fed.loader.batch_bytes
    if batch is None:
        raise Abstain("no batch was weighed")
    if not fed.singly:
        return None
    samples = fed.loader.batch_size or 0
    # A sample picked is a handful of objects; whole batches leave the collector nothing to do.
    collected = phases.gc_in_wait_ns if phases and not fed.loader.num_workers else 0.0
    least = OWN_SAVING_LOW_FRAC if fed.loader.dataset_at else SAVING_LOW_FRAC
    return Found(
        summary=(
            f"Each batch is picked from {fed.loader.dataset_class} sample by sample, {samples}"
            f" times, and put together again: {duration(fed.cpu)} a step on a core, for"
            f" {size(batch)} that copying once takes {duration(fed.copying)}."
        ),
        evidence=(
            *fed.measures(),
            count("samples in a batch", samples, "probe"),
            bytes_("batch", batch, "fetch"),
            ns("fetching on a core, beyond copying", fed.singly, "fetch"),
            *((ns("garbage collected meanwhile", collected, "baseline"),) if collected else ()),
        ),
        fix=Fix(_advice(fed.loader), "review" if fed.loader.dataset_at else "safe"),
        gain=Gain(
            fed.gain_of_saving(fed.singly * least) + collected * least,
            fed.gain_of_saving(fed.singly * SAVING_HIGH_FRAC * (1 + fed.queued / fed.cpu))
            + collected,
            f"of the time that goes by the number of samples, {percent(least)} to"
            f" {percent(SAVING_HIGH_FRAC)} was won where whole batches were indexed; high end: less"
            " waiting for a core with it.",
            (*DATA_WAIT, "gc") if collected else DATA_WAIT,
        ),
        at=fed.loader.created_at,
    )


def _advice(loader: Loader) -> str:
    stacked, mine = "", ""
    if loader.dataset_class == "list":
        stacked = "Stack the list's fields once into a TensorDataset, then index"
    if loader.dataset_at is not None:
        mine = (
            f" {loader.dataset_at.function}{where(loader.dataset_at)} is then given a list of"
            " indices: tensors and arrays take it like one; what reckons with the index needs"
            " np.asarray of it, and a Python list has to become a tensor once."
        )
    return (
        f"{stacked or 'Index'} whole batches{where(loader.created_at)}: DataLoader(dataset,"
        f" sampler=BatchSampler(RandomSampler(dataset), batch_size={loader.batch_size},"
        f" drop_last=False), batch_size=None), with SequentialSampler if the order is fixed.{mine}"
    )


def fires() -> Evidence:
    table = loaders(
        dataset_class="TensorDataset", dataset_at=None, batch_size=256, batch_bytes=12e3,
        load_ns=0.9e6, load_cpu_ns=0.9e6, collate_ns=0.5e6, collate_cpu_ns=0.5e6, runqueue_ns=0.0,
    )  # fmt: skip
    step = budget(data_wait_cpu=1.6, forward=0.5, backward=0.8, optimizer=0.2)
    return Evidence().add(step, table, system())


def clear() -> Evidence:
    """Images of 600 kB: copying takes as long as fetching did."""
    images = loaders(
        dataset_class="TensorDataset", dataset_at=None, batch_size=64, batch_bytes=38.5e6,
        load_ns=1e6, load_cpu_ns=1e6, collate_ns=18e6, collate_cpu_ns=18e6, runqueue_ns=0.0,
    )  # fmt: skip
    step = budget(data_wait_cpu=19, forward=10, backward=20)
    return Evidence().add(step, images, system())
