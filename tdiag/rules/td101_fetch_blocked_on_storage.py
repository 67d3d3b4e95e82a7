"""Fetches wait for storage

## What it measures
The training thread waits for batches, and most of the fetch time is spent neither on a core nor
queueing for one: the fetching thread is blocked. Bytes read from storage (page-cache misses), or
samples taken in the fetch, tell on what.

## Why it is slow
Storage answers one request after the other while cores and device idle. Reading what is already in
the page cache is copying, not storage, and is not counted here.

## What to do
Read the data into memory once if they fit, let several workers wait side by side, raise the number
of batches fetched ahead, pack many small files into few, or move the data to a faster disk.

## How the gain is computed
High end: the fetches overlap in workers, or come from memory. Low end: storage serves no more per
second than now, so that only what the training process computes meanwhile is hidden; or, when
memory holds the data, all blocked time from the second epoch on.

## When this advice is wrong
The first epoch after start-up always reads cold data; if the data then stays in the page cache, a
longer run does not show this. A fetch that waits for a lock, for threads of its own or for a remote
service is blocked too: the sampled line says what it is.
"""

from __future__ import annotations

import math

from tdiag.evidence.data import Loader, Loaders
from tdiag.evidence.kinds import Budget, Phases, StackLine, Stacks, System
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, where
from tdiag.rules.examples import GB, budget, loaders, stack, stacks, system
from tdiag.rules.feed import RAM_FOR_DATA_FRAC, Feed, feed_of
from tdiag.rules.fetch_lines import dataset_place, top_fetch_lines
from tdiag.rules.measures import bytes_, frac
from tdiag.units import duration, percent, plural, size

CODE = "TD101"
NAME = "fetch-blocked-on-storage"
CLASS = "io"
AFTER = {
    "TD103": "waiting side by side for many small files only hides them",
    "TD102": "waiting side by side for bytes that are not used only hides them",
    "TD202": "on full cores further workers only queue",
}

# One page, the smallest amount that the kernel reads from storage.
MIN_READ_BYTES = 4096
# Mostly blocked workers cost a core little, but an interpreter's memory each; ours.
MAX_WORKERS_PER_CORE = 4


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    stacks: Stacks | None,
) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or not fed.blocked_mostly:
        return None
    lines = top_fetch_lines(fed, stacks)
    read = fed.loader.read_bytes
    if (read or 0.0) < MIN_READ_BYTES and not lines:
        raise Abstain(
            f"fetches are blocked {percent(fed.blocked / fed.wall)} of their time, but neither"
            " reads from storage nor samples of the fetch say on what"
        )
    workers = _workers(fed, system)
    cached = _bytes_to_cache(fed, system)
    low, high, why = _gain(fed, workers, cached is not None, system)
    return Found(
        summary=(
            f"{percent(fed.wait / fed.step)} of the step waits for data, and fetching it"
            f" ({duration(fed.wall)} a step) is blocked {percent(fed.blocked / fed.wall)} of the"
            f" time{_on_what(read, lines)}."
        ),
        evidence=(
            *fed.measures(),
            *(() if read is None else (bytes_("read from storage per batch", read, "fetch"),)),
            *(frac(f"fetch samples{where(x.at)}", x.self_frac, "sample") for x in lines),
        ),
        fix=Fix(_advice(fed, workers, cached, lines), "safe", f"num_workers={workers}"),
        gain=Gain(low, high, why, DATA_WAIT),
        at=lines[0].at if lines else dataset_place(fed.loader),
    )


def _on_what(read: float | None, lines: list[StackLine]) -> str:
    reading = ""
    if read is not None and read >= MIN_READ_BYTES:
        reading = f", reading {size(read)} a batch from storage"
    leaf = f" in {lines[0].leaf}" if lines and lines[0].leaf else ""
    return reading + (f"{where(lines[0].at)}{leaf}" if lines else "")


def _workers(fed: Feed, system: System) -> int:
    """Enough to hide the fetches, as far as their CPU share leaves cores for them."""
    wanted = math.ceil(fed.wall / max(fed.rest, 1.0))
    on_core = max(fed.cpu / fed.wall, 1 / MAX_WORKERS_PER_CORE)
    return max(1, fed.loader.num_workers, min(wanted, int(system.cores_allowed / on_core)))


def _bytes_to_cache(fed: Feed, system: System) -> float | None:
    """What the whole dataset takes in memory, if it is known and fits."""
    loader, free = fed.loader, system.ram_available_bytes
    if not loader.dataset_len or not loader.batch_size or free is None:
        return None
    total = _bytes_read(loader) / loader.batch_size * loader.dataset_len
    return total if _reads(loader) and total <= RAM_FOR_DATA_FRAC * free else None


def _bytes_read(loader: Loader) -> float:
    """Per batch, from storage or the page cache."""
    return max(loader.rchar_bytes or 0.0, loader.read_bytes or 0.0)


def _reads(loader: Loader) -> bool:
    """Files are read at all; what little is left comes from the queues between processes."""
    return _bytes_read(loader) >= MIN_READ_BYTES


def _gain(fed: Feed, workers: int, cache: bool, system: System) -> tuple[float, float, str]:
    overlapped = fed.gain_with(workers, system)[1] if workers > fed.loader.num_workers else 0.0
    memory = fed.gain_of_saving(fed.blocked) if cache else 0.0
    them = plural(workers, "worker")
    if cache:
        why = "low end: from memory, no fetch blocks from the second epoch on; high end:"
        return memory, max(memory, overlapped), f"{why} {them} to overlap them."
    hidden = min(fed.rest, fed.wall) if fed.loader.num_workers == 0 else 0.0
    why = f"high end: {them} to wait side by side; low end: storage serves no faster than now."
    return min(hidden, overlapped), overlapped, why


def _advice(fed: Feed, workers: int, cached: float | None, lines: list[StackLine]) -> str:
    place = lines[0].at if lines else dataset_place(fed.loader)
    ways = []
    if cached is not None:
        name = fed.loader.dataset_class
        ways.append(f"read {name} into memory once ({size(cached)} in all){where(place)}")
    if workers > fed.loader.num_workers:
        at = where(fed.loader.created_at)
        ways.append(f"overlap the waits with DataLoader(..., num_workers={workers}){at}")
    if _reads(fed.loader) or fed.loader.read_bytes is None:
        ways.append("pack many small files into few, or move the data to a faster disk")
    else:
        ways.append(
            f"shorten what it waits for{where(place)}: no file is read (a service? a lock?)"
        )
    sentence = "; or ".join(ways) + "."
    return sentence[0].upper() + sentence[1:]


def fires() -> Evidence:
    step = budget(data_wait_io=50, data_wait_cpu=10, forward=8, backward=10, optimizer=2)
    cold = loaders(load_cpu_ns=4e6, read_bytes=24e6, rchar_bytes=24e6)
    reading = stacks(training=(stack(18, 0.7, "load (numpy/lib/npyio.py)", "data_wait"),))
    return Evidence().add(step, cold, system(ram_available_bytes=32 * GB), reading)


def clear() -> Evidence:
    """`np.load` of files in the page cache: many bytes through read(), all of it on a core."""
    step = budget(data_wait_cpu=60, forward=8, backward=10, optimizer=2)
    return Evidence().add(step, loaders(rchar_bytes=400e6, read_bytes=0.0), system())
