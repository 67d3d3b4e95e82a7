"""Tensors in memory are indexed one sample at a time

## What it measures
The training thread waits for batches of a dataset in memory (`TensorDataset`, a tensor, a list, or
a class whose samples load in at most 10 µs each) that torch indexes sample by sample and collates.
The fetch takes more CPU time than copying the batch's bytes once.

## Why it is slow
Each sample costs a few microseconds of Python for indexing and collating, however small it is. A
batch of 256 pays that 256 times to copy a few kilobytes.

## What to do
Index whole batches: a `BatchSampler` as the *sampler*, and `batch_size=None`. `TensorDataset` then
gets a list of indices and answers with one call per tensor. Batches keep their order and values.
Your own `__getitem__` gets that list: tensors and arrays accept it like a number. Arithmetic on the
index needs an array: windows `self.data[i : i + 96]` become
`self.data[np.asarray(i)[:, None] + np.arange(96)]`. Convert a Python list to a tensor once.

## How the gain is computed
From the fetch's CPU time beyond copying the batch. In measurements, whole batches of 64 samples and
more saved 80 % of it or more; smaller ones of a `TensorDataset` 33 % or more, and of a class of
one's own from next to nothing. The same shares apply to garbage collections during the fetch. High
end: all of it, all collections, and proportionally less queueing for a core.

## When this advice is wrong
Large samples, such as images of 100 kB, are bound by copying, and are not reported. Your own
collate function or transform must then handle whole batches. An `IterableDataset` has no index.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.machine import System
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, bytes_, count, ns, where
from tdiag.rules.examples import budget, loaders, system
from tdiag.rules.feed import feed_of
from tdiag.units import duration, percent, size

CODE = "TD213"
NAME = "samples-indexed-singly"
CLASS = "cpu"
AFTER = {
    "TD306": "the device indexes whole batches by itself",
    "TD723": "indexing waits for the interpreter that another thread holds",
}

LARGE_BATCH = Threshold(
    64,
    "samples",
    "Heuristic: in smaller batches, what does not grow with the batch was a third or more of a"
    " fetch (60 of 160 µs for 16 samples of a TensorDataset).",
)
SAVING_LOW_FRAC = Threshold(
    0.75,
    "of the time beyond copying",
    "Measured on one core, torch 2.13: batches of 64 to 4096 saved 0.8 to all of it, rows of 10 to"
    " 784, TensorDataset and a class that holds tensors or arrays (benchmarks/rule_constants.py"
    " td213).",
)
SMALL_SAVING_LOW_FRAC = Threshold(
    0.3,
    "of the time beyond copying",
    "The same measurement: a TensorDataset saved 0.33 (batches of 16, rows of 3072) to 0.79"
    " (benchmarks/rule_constants.py td213).",
)
OWN_SMALL_SAVING_LOW_FRAC = Threshold(
    0,
    "of the time beyond copying",
    "The same measurement: a class that holds tensors saved 0.03 with batches of 16 rows of 3072"
    " (benchmarks/rule_constants.py td213).",
)


def check(budget: Budget, loaders: Loaders, system: System, phases: Phases | None) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or fed.blocked_mostly or not fed.from_memory:
        return None
    batch = fed.loader.batch_bytes
    if batch is None:
        raise Abstain("the bytes of a batch were not measured")
    if not fed.singly:
        return None
    samples = fed.loader.batch_size or 0
    # Each sample is a few objects; whole batches leave the collector nothing to do.
    collected = phases.gc_in_wait_ns if phases and not fed.loader.num_workers else 0.0
    least = _least(samples, own=fed.loader.dataset_at is not None)
    return Found(
        summary=(
            f"Indexing {fed.loader.dataset_class} sample by sample, {samples} times a batch, takes"
            f" {duration(fed.cpu)} per step on a core. Copying the {size(batch)} once takes"
            f" {duration(fed.copying)}."
        ),
        evidence=(
            *fed.measures(),
            count("samples in a batch", samples, "probe"),
            bytes_("batch", batch, "fetch"),
            ns("fetch time on a core, beyond copying", fed.singly, "fetch"),
            *(
                (ns("garbage collection during fetches", collected, "baseline"),)
                if collected
                else ()
            ),
        ),
        fix=_fix(fed.loader),
        gain=Gain(
            fed.gain_of_saving(fed.singly * least) + collected * least,
            fed.gain_of_saving(fed.singly * (1 + fed.queued / fed.cpu)) + collected,
            f"low end: whole batches save {percent(least)} of this time, the least that was"
            " measured; high end: all of it, and fetches also queue less for a core.",
            (*DATA_WAIT, "gc") if collected else DATA_WAIT,
        ),
        at=fed.loader.created_at,
    )


def _least(samples: int, own: bool) -> float:
    """The smallest share of the time beyond copying that whole batches of so many samples save."""
    if samples >= LARGE_BATCH:
        return SAVING_LOW_FRAC
    return OWN_SMALL_SAVING_LOW_FRAC if own else SMALL_SAVING_LOW_FRAC


def _fix(loader: Loader) -> Fix:
    index, mine = "Index", ""
    if loader.dataset_class == "list":
        index = "Stack the list's fields once into a TensorDataset, and index"
    if loader.dataset_at is not None:
        mine = (
            f" {loader.dataset_at.function}{where(loader.dataset_at)} then gets a list of indices:"
            " tensors and arrays accept it like a number, arithmetic on it needs np.asarray, and a"
            " Python list must become a tensor once."
        )
    return Fix(
        f"{index} whole batches{where(loader.created_at)}: a BatchSampler as the sampler, and"
        f" batch_size=None.{mine}",
        "review" if loader.dataset_at else "safe",
        "loader.whole_batches" if index == "Index" else None,
        action="Index whole batches instead of single samples",
        code=_code(loader),
    )


def _code(loader: Loader) -> str:
    """The code keeps the loader's present order of samples: a sampler for several ranks gives each
    its own share."""
    if loader.sampler_len is None:  # the user's own batch sampler
        return (
            "from torch.utils.data import DataLoader\n\n"
            "# batches: the loader's batch_sampler\n"
            "loader = DataLoader(dataset, sampler=batches, batch_size=None)"
        )
    name = loader.sampler_class or "RandomSampler"
    torchs = name in ("RandomSampler", "SequentialSampler")
    own = f"{name}(dataset)" if torchs else "sampler"
    imported = f", {name}" if torchs else ""
    comment = "" if torchs else f"  # the loader's own {name}"
    return (
        f"from torch.utils.data import BatchSampler, DataLoader{imported}\n\n"
        f"batches = BatchSampler({own}, {loader.batch_size}, {bool(loader.drop_last)}){comment}\n"
        "loader = DataLoader(dataset, sampler=batches, batch_size=None)"
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
