"""Workers copy the data set's Python objects

## What it measures
Memory that each worker wrote and shares with no other process (`Private_Dirty` of the kernel): how
much it grows from the worker's second sample to its last. And the lists, tuples, dicts and sets
with 100,000 items or more that the dataset holds.

## Why it is slow
It is not slow until memory runs out. Forked workers share the data set's memory with the training
process until somebody writes to it, and reading a Python object writes to it: its reference count.
The kernel then copies the page, in each worker anew, until each has a copy of all objects. After
that there is less page cache, so data is read from storage again, or the kernel kills a worker.

## What to do
Keep the samples in one array: numbers and strings in NumPy or a tensor, tables in pyarrow, other
objects pickled into one array of bytes with an array of offsets. Or use fewer workers.

## How the gain is computed
No gain is predicted: the run did not reach the limit.

## When this advice is wrong
If the workers' memory grows for another reason: a cache in `__getitem__`, a library's pool. Then
the container is not to blame. The growth ends when every object has been read once.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Container, Loader, Loaders, WorkerMemory
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.rules.base import Abstain, Found, bytes_, count, where
from tdiag.rules.examples import GB, MB, loaders, system
from tdiag.rules.feed import share_of_rank
from tdiag.units import plural, size

CODE = "TD224"
NAME = "workers-copy-data-set"
CLASS = "memory"


def check(
    loaders: Loaders, memory: WorkerMemory | None, system: System, threads: Threads | None
) -> Found | None:
    loader = next((x for x in loaders.loaders if memory and x.id == memory.loader), None)
    loader = loader or loaders.train()
    if loader is None or loader.start_method != "fork" or not loader.containers:
        return None
    free = share_of_rank(system, threads).ram_available_bytes
    if memory is None or free is None:
        raise Abstain("the workers' own memory was not measured three times")
    copied = memory.grown_bytes * memory.workers
    if copied <= NOTICEABLE_FRAC * (copied + free):
        return None
    largest = loader.containers[0]
    return Found(
        summary=(
            f"Each of {plural(memory.workers, 'worker')} copied {size(memory.grown_bytes)} of"
            f" memory in {memory.seconds:.0f} s: {size(copied)} in all, with {size(free)} left"
            f" free. {_holds(loader, largest)}, and reading them in a forked worker copies them."
        ),
        evidence=(
            bytes_("a worker's own memory", memory.private_bytes, "system"),
            bytes_("its growth", memory.grown_bytes, "system"),
            bytes_("memory available, lowest", float(free), "system"),
            *(
                count(f"items of {x.attribute} ({x.type} of {x.item_type})", x.items, "probe")
                for x in loader.containers[:3]
            ),
        ),
        fix=Fix(
            f"Keep {loader.dataset_class}.{largest.attribute}{where(loader.dataset_at)} in one"
            " array (NumPy, a tensor, pyarrow) instead of Python objects.",
            "review",
            action="Keep the samples in an array instead of Python objects",
            code=_code(largest),
        ),
        at=loader.dataset_at,
    )


def _code(largest: Container) -> str:
    """ "" where NumPy would make an array of Python objects."""
    name = f"self.{largest.attribute}"
    plain = largest.type in ("list", "tuple") and largest.item_type in (
        "bool",
        "int",
        "float",
        "str",
    )
    return f"{name} = np.array({name})" if plain else ""


def _holds(loader: Loader, largest: Container) -> str:
    return (
        f"{loader.dataset_class}.{largest.attribute} is a {largest.type} of"
        f" {largest.items:,} Python objects ({largest.item_type})"
    )


def fires() -> Evidence:
    return _copying(grown=700 * MB)


def clear() -> Evidence:
    """The same samples in an array: the workers read it and write nothing."""
    return _copying(grown=2 * MB)


def _copying(grown: float) -> Evidence:
    samples = Container(attribute="samples", type="list", items=8_000_000, item_type="tuple")
    return Evidence().add(
        loaders(num_workers=8, start_method="fork", containers=(samples,)),
        WorkerMemory(loader=1, workers=8, private_bytes=grown + 90 * MB, grown_bytes=grown,
                     seconds=40.0),
        system(ram_available_bytes=16 * GB),
    )  # fmt: skip
