"""Fetches wait for storage

## What it measures
The training thread waits for batches, and most of the fetch time is neither on a core nor queueing
for one: the fetching thread is blocked. Bytes read from storage (page-cache misses), or samples of
the fetch, show what it waits for.

## Why it is slow
Storage answers one request after the other while cores and device idle. Reads from the page cache
are copies in memory and do not count.

## What to do
Read the data into memory once if it fits, let several workers wait at the same time, pack many
small files into few, or move the data to a faster disk.

## How the gain is computed
High end: fetches overlap in workers. Low end with the data in memory: no fetch blocks from the
second epoch on. Low end otherwise: storage is no faster with more requests, and only the training
process's own computation is hidden.

## When this advice is wrong
The first epoch always reads cold data; if the data then stays in the page cache, a longer run does
not wait. A fetch that waits for a lock or a remote service is blocked too, and so is a training
process that waits for its own threads: the sampled line shows which. A worker's threads count as
its CPU time.
"""

from __future__ import annotations

import math

from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.sampled import StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases, StepHistory
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, bytes_, frac, where
from tdiag.rules.examples import GB, budget, loaders, stack, stacks, system
from tdiag.rules.feed import (
    MIN_READ_BYTES,
    RAM_FOR_DATA_FRAC,
    Feed,
    feed_of,
    main_guard,
    reads_once,
    share_of_rank,
    share_of_stream,
)
from tdiag.rules.fetch_lines import fetch_place, top_fetch_lines
from tdiag.rules.snippets import files_in_memory
from tdiag.units import duration, percent, plural, size

CODE = "TD101"
NAME = "fetch-blocked-on-storage"
CLASS = "io"
AFTER = {
    "TD103": "workers that wait for small files hide them and do not remove them",
    "TD102": "workers that wait for unused bytes hide them and do not remove them",
    "TD202": "on full cores further workers only queue",
    "TD723": "fetches that wait for the interpreter look blocked",
}

MAX_WORKERS_PER_CORE = Threshold(
    4, "per core", "Heuristic: blocked workers hardly use a core, but take memory each."
)


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    stacks: Stacks | None,
    history: StepHistory | None,
    threads: Threads | None,
) -> Found | None:
    system = share_of_rank(system, threads)
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or not fed.blocked_mostly:
        return None
    lines = top_fetch_lines(fed.loader, stacks)
    read = fed.loader.read_bytes
    if (read or 0.0) < MIN_READ_BYTES and not lines:
        raise Abstain(
            f"fetches are blocked {percent(fed.blocked / fed.wall)} of their time, and neither"
            " reads from storage nor samples of the fetch show on what"
        )
    workers = _workers(fed, system)
    cached = _bytes_to_cache(fed, system)
    low, high, why = _gain(fed, workers, cached is not None, system)
    if reads_once(fed.loader, cached is not None, history):
        low, why = 0.0, f"{why.split('; low end:')[0]}; low end: from the second epoch on the page"
        why += " cache may serve the files anyway."
    return Found(
        summary=(
            f"{percent(fed.wait / fed.step)} of the step waits for data, and fetching it"
            f" ({duration(fed.wall)} per step) is blocked {percent(fed.blocked / fed.wall)} of the"
            f" time{_on_what(read, lines)}."
        ),
        evidence=(
            *fed.measures(),
            *(() if read is None else (bytes_("read from storage per batch", read, "fetch"),)),
            *(frac(f"fetch samples{where(x.at)}", x.self_frac, "sample") for x in lines),
        ),
        fix=_fix(fed, workers, cached, lines),
        gain=Gain(low, high, why, DATA_WAIT),
        at=fetch_place(fed, lines),
    )


def _on_what(read: float | None, lines: list[StackLine]) -> str:
    reading = ""
    if read is not None and read >= MIN_READ_BYTES:
        reading = f", reading {size(read)} a batch from storage"
    leaf = f" in {lines[0].leaf}" if lines and lines[0].leaf else ""
    return reading + (f"{where(lines[0].at)}{leaf}" if lines else "")


def _workers(fed: Feed, system: System) -> int:
    """Enough to hide the fetches, as far as their CPU share leaves cores."""
    wanted = math.ceil(fed.wall / max(fed.rest, 1.0))
    on_core = max(fed.cpu / fed.wall, 1 / MAX_WORKERS_PER_CORE)
    return max(1, fed.loader.num_workers, min(wanted, int(system.cores_allowed / on_core)))


def _bytes_to_cache(fed: Feed, system: System) -> float | None:
    """The size of the whole dataset in memory; None if unknown or too large."""
    loader, free = fed.loader, system.ram_available_bytes
    if not loader.dataset_len or not loader.batch_size or free is None:
        return None
    total = _bytes_read(loader) / loader.batch_size * loader.dataset_len
    return total if _reads(loader) and total <= RAM_FOR_DATA_FRAC * free else None


def _bytes_read(loader: Loader) -> float:
    """Per batch, from storage or the page cache."""
    return max(loader.rchar_bytes or 0.0, loader.read_bytes or 0.0)


def _reads(loader: Loader) -> bool:
    """Whether files are read; smaller amounts come from the queues between processes."""
    return _bytes_read(loader) >= MIN_READ_BYTES


def _gain(fed: Feed, workers: int, cache: bool, system: System) -> tuple[float, float, str]:
    overlapped = fed.gain_with(workers, system)[1] if workers > fed.loader.num_workers else 0.0
    memory = fed.gain_of_saving(fed.blocked) if cache else 0.0
    overlap = f"high end: fetches overlap in {plural(workers, 'worker')}; low end:"
    if cache:
        why = f"{overlap} in memory, no fetch blocks from the second epoch on."
        return memory, max(memory, overlapped), why
    hidden = min(fed.rest, fed.wall) if fed.loader.num_workers == 0 else 0.0
    why = f"{overlap} storage is no faster with more requests."
    return min(hidden, overlapped), overlapped, why


def _fix(fed: Feed, workers: int, cached: float | None, lines: list[StackLine]) -> Fix:
    """The first option becomes the action, and what a trial measures."""
    name, place = fed.loader.dataset_class, where(fetch_place(fed, lines))
    ways: dict[str, str] = {}
    if cached is not None:
        ways["Read the dataset into memory once"] = (
            f"read the files of {name} into memory once ({size(cached)} in all){place}"
        )
    if workers > fed.loader.num_workers:
        ways[f"Raise num_workers to {workers}"] = (
            f"overlap the waits with DataLoader(..., num_workers={workers})"
            f"{where(fed.loader.created_at)}"
            + f"{share_of_stream(fed.loader)}{main_guard(fed.loader)}".rstrip(".")
        )
    if _reads(fed.loader) or fed.loader.read_bytes is None:
        ways["Move the data to a faster disk"] = (
            "pack many small files into few, or move the data to a faster disk"
        )
    else:
        ways["Shorten what the fetch waits for"] = (
            f"shorten the wait{place}: no file is read, so it may be a service, a lock, or the"
            " process's own threads"
        )
    text = ". Or ".join(ways.values()) + "."
    return Fix(
        text[0].upper() + text[1:],
        "review" if share_of_stream(fed.loader) else "safe",
        _tried(fed.loader, workers, cached is not None),
        action=next(iter(ways)),
        code=files_in_memory(name, place) if cached is not None else "",
    )


def _tried(loader: Loader, workers: int, cached: bool) -> str | None:
    """Samples kept in memory stand for files kept there, unless they are made anew each time."""
    if cached and loader.random is False:
        return "loader.cache" + ("+loader.num_workers=0" if loader.num_workers else "")
    return f"loader.num_workers={workers}" if workers > loader.num_workers else None


def fires() -> Evidence:
    step = budget(data_wait_io=50, data_wait_cpu=10, forward=8, backward=10, optimizer=2)
    cold = loaders(load_cpu_ns=4e6, read_bytes=24e6, rchar_bytes=24e6)
    reading = stacks(training=(stack(18, 0.7, "load (numpy/lib/npyio.py)", "data_wait"),))
    return Evidence().add(step, cold, system(ram_available_bytes=96 * GB), reading)


def clear() -> Evidence:
    """`np.load` of files in the page cache: many bytes through read(), all of it on a core."""
    step = budget(data_wait_cpu=60, forward=8, backward=10, optimizer=2)
    return Evidence().add(step, loaders(rchar_bytes=400e6, read_bytes=0.0), system())
