"""Prefetched batches fill the memory

## What it measures
Workers × `prefetch_factor` × the bytes of a batch, against the lowest free memory in the run (the
cgroup's limit counts).

## Why it is slow
It is not slow until memory runs out. Then the page cache shrinks, so data is read from storage
again; after that the kernel kills a worker.

## What to do
Prefetch fewer batches (`prefetch_factor`, then `num_workers`), or use smaller dtypes.

## How the gain is computed
No gain is predicted: the run did not reach the limit.

## When this advice is wrong
If the queue was never full, less memory was in use. Workers also copy the Python objects that the
dataset touches; this needs additional memory.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import Abstain, Found, bytes_, count, where
from tdiag.rules.examples import GB, MB, loaders, system
from tdiag.rules.feed import share_of_rank
from tdiag.rules.thresholds import DEFAULT_PREFETCH
from tdiag.units import percent, size

CODE = "TD211"
NAME = "batches-in-flight-fill-memory"
CLASS = "memory"


def check(
    loaders: Loaders,
    system: System,
    threads: Threads | None,
) -> Found | None:
    system = share_of_rank(system, threads)
    loader = loaders.train()
    if loader is None or not loader.num_workers:
        return None
    if loader.batch_bytes is None or system.ram_available_bytes is None:
        raise Abstain("the bytes of a batch or free memory were not measured")
    free = float(system.ram_available_bytes)
    queued = loader.num_workers * (loader.prefetch_factor or int(DEFAULT_PREFETCH))
    held = queued * loader.batch_bytes
    if held <= MAJORITY_FRAC * (held + free):
        return None
    fitting = int(MAJORITY_FRAC * (held + free) / loader.batch_bytes)
    workers = max(1, min(loader.num_workers, fitting))
    factor = max(1, fitting // workers)
    return Found(
        summary=(
            f"{loader.num_workers} workers prefetch up to {queued} batches of"
            f" {size(loader.batch_bytes)}: {size(held)} in all, {percent(held / (held + free))} of"
            f" the memory, with {size(free)} left free."
        ),
        evidence=(
            bytes_("batches in flight", held, "fetch"),
            bytes_("batch", loader.batch_bytes, "fetch"),
            bytes_("memory available, lowest", free, "system"),
            count("num_workers", loader.num_workers, "probe"),
        ),
        fix=Fix(
            f"DataLoader(..., num_workers={workers}, prefetch_factor={factor})"
            f"{where(loader.created_at)}.",
            "safe",
            action=f"Set num_workers={workers} and prefetch_factor={factor}",
        ),
        at=loader.created_at,
    )


def fires() -> Evidence:
    volumes = loaders(num_workers=8, prefetch_factor=4, batch_bytes=400.0 * MB)
    return Evidence().add(volumes, system(ram_available_bytes=2 * GB))


def clear() -> Evidence:
    """The same batches on a machine with more memory."""
    volumes = loaders(num_workers=8, prefetch_factor=4, batch_bytes=400.0 * MB)
    return Evidence().add(volumes, system(ram_available_bytes=32 * GB))
