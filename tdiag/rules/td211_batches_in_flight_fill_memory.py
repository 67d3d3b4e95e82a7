"""Batches in flight fill the memory

## What it measures
Workers × `prefetch_factor` × the measured bytes of a batch, against the memory that was free at its
lowest in the run (the cgroup's limit counts).

## Why it is slow
It is not, until memory runs out: then the page cache goes first, so that data is read from storage
again, and after that the kernel kills a worker.

## What to do
Fewer batches in flight (`prefetch_factor`, then `num_workers`), or smaller types in a batch.

## How the gain is computed
Nothing is predicted: what it prevents did not happen in this run.

## When this advice is wrong
When the queue was never full, less than this was really held. Workers also hold a copy of whatever
Python objects the dataset touches; that comes on top.
"""

from __future__ import annotations

from tdiag.evidence.data import Loaders
from tdiag.evidence.kinds import System
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, where
from tdiag.rules.examples import GB, MB, loaders, system
from tdiag.rules.measures import bytes_, count
from tdiag.units import percent, size

CODE = "TD211"
NAME = "batches-in-flight-fill-memory"
CLASS = "memory"

# Torch's default when there are workers (DataLoader's documentation).
DEFAULT_PREFETCH = 2
# By definition of "mostly": batches waiting hold more than what is left free.
MOST_FRAC = 0.5


def check(loaders: Loaders, system: System) -> Found | None:
    loader = loaders.train()
    if loader is None or not loader.num_workers:
        return None
    if loader.batch_bytes is None or system.ram_available_bytes is None:
        raise Abstain("no batch was weighed, or free memory was not measured")
    free = float(system.ram_available_bytes)
    queued = loader.num_workers * (loader.prefetch_factor or DEFAULT_PREFETCH)
    held = queued * loader.batch_bytes
    if held <= MOST_FRAC * (held + free):
        return None
    fitting = int(MOST_FRAC * (held + free) / loader.batch_bytes)
    workers = max(1, min(loader.num_workers, fitting))
    return Found(
        summary=(
            f"{queued} batches of {size(loader.batch_bytes)} may be in flight"
            f" ({loader.num_workers} workers), {size(held)} in all, with {size(free)} of memory"
            f" free: {percent(held / (held + free))} of what there is."
        ),
        evidence=(
            bytes_("batches in flight", held, "fetch"),
            bytes_("batch", loader.batch_bytes, "fetch"),
            bytes_("memory available, lowest", free, "system"),
            count("num_workers", loader.num_workers, "probe"),
        ),
        fix=Fix(
            f"DataLoader(..., num_workers={workers}, prefetch_factor={max(1, fitting // workers)})"
            f"{where(loader.created_at)}.",
            "safe",
        ),
        at=loader.created_at,
    )


def fires() -> Evidence:
    volumes = loaders(num_workers=8, prefetch_factor=4, batch_bytes=400.0 * MB)
    return Evidence().add(volumes, system(ram_available_bytes=2 * GB))


def clear() -> Evidence:
    """As many batches, on a machine with memory for them."""
    volumes = loaders(num_workers=8, prefetch_factor=4, batch_bytes=400.0 * MB)
    return Evidence().add(volumes, system(ram_available_bytes=32 * GB))
