"""What each DataLoader is, and its fetches in the clean window."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean

import numpy as np

from tdiag.evidence.feeding import (
    BatchField,
    Container,
    Loader,
    Loaders,
    PaddedField,
    Pictures,
    Shrunk,
    WorkerMemory,
)
from tdiag.evidence.from_run.clean import Clean
from tdiag.evidence.from_run.counted import same_inputs
from tdiag.evidence.from_run.counted_records import AgainRecord
from tdiag.evidence.from_run.event_files import Process, workers_of
from tdiag.evidence.from_run.machine_samples import private_memory
from tdiag.evidence.from_run.records import (
    FetchRecord,
    Field,
    IteratorRecord,
    LoaderRecord,
    location,
)
from tdiag.evidence.from_run.slices import Ints
from tdiag.evidence.torch_ops import SameInput


def make_loaders(
    lead: Process,
    processes: list[Process],
    roles: Mapping[int, str],
    clean: Clean,
) -> Loaders:
    """Every loader that the lead process iterated, with the fetches of its workers."""
    fetches = _fetches(lead, processes)
    again = {
        loader: same_inputs(record).lines
        for worker, loader in workers_of(lead, processes).values()
        if (record := worker.last(AgainRecord))
    }
    return Loaders(
        loaders=tuple(
            _loader(
                about,
                roles.get(about.id, "eval"),
                [it for it in lead.all(IteratorRecord) if it.loader == about.id],
                fetches[about.id],
                again.get(about.id, ()),
                clean,
                lead.steps.end,
            )
            for about in lead.all(LoaderRecord)
        )
    )


def _fetches(lead: Process, processes: list[Process]) -> dict[int, list[FetchRecord]]:
    """Fetches by loader. A spawned worker does not know its loader, so its pid identifies it."""
    found: dict[int, list[FetchRecord]] = defaultdict(list)
    for fetch in lead.all(FetchRecord):
        if fetch.worker is None and fetch.loader is not None:
            found[fetch.loader].append(fetch)
    for worker, loader in workers_of(lead, processes).values():
        found[loader] += (f for f in worker.all(FetchRecord) if f.worker is not None)
    return found


def make_worker_memory(
    system: Path, lead: Process, roles: Mapping[int, str]
) -> WorkerMemory | None:
    """``system``: the samples of its machine. None if no worker of a training loader was seen
    three times, or if the rank is on another machine."""
    training = {loader for loader, role in roles.items() if role == "train"}
    made = [it for it in lead.all(IteratorRecord) if it.loader in training and it.pids]
    for iterator in [] if lead.away else reversed(made):
        seen = private_memory(system, iterator.pids)
        # The first sample may have caught a worker that was still starting.
        known = [samples[1:] for samples in seen.values() if len(samples) > 2]
        if known:
            return WorkerMemory(
                loader=iterator.loader,
                workers=len(iterator.pids),
                private_bytes=fmean(samples[-1][1] for samples in known),
                grown_bytes=fmean(samples[-1][1] - samples[0][1] for samples in known),
                seconds=fmean(samples[-1][0] - samples[0][0] for samples in known) / 1e9,
            )
    return None


def _in_window(fetches: list[FetchRecord], clean: Clean) -> list[FetchRecord]:
    """Fetches that ended in the clean window; those of the whole run if the queue held enough
    batches for the whole window."""
    inside = [f for f in fetches if clean.holds(f.t + f.wall)]
    return inside or fetches


def _in_a_row(iterators: list[IteratorRecord], step_ends: Ints) -> int:
    """The most iterators that were made between the ends of two steps."""
    between = Counter(np.searchsorted(step_ends, [it.t for it in iterators]).tolist())
    return max((n for at, n in between.items() if 0 < at < len(step_ends)), default=1)


def _loader(
    about: LoaderRecord,
    role: str,
    iterators: list[IteratorRecord],
    all_fetches: list[FetchRecord],
    again: tuple[SameInput, ...],
    clean: Clean,
    step_ends: Ints,
) -> Loader:
    fetches = _in_window(all_fetches, clean)
    # The size of only some batches is measured, and profilers do not change it.
    weighed = [f.dtypes for f in all_fetches if f.dtypes]
    names = sorted({name for dtypes in weighed for name in dtypes})
    return Loader(
        id=about.id,
        role=role,
        created_at=location(about.at),
        iterated_at=next((location(it.at) for it in reversed(iterators) if it.at), None),
        in_a_row=_in_a_row(iterators, step_ends),
        dataset_class=about.dataset_class,
        dataset_at=location(about.dataset_at),
        dataset_len=about.dataset_len,
        containers=tuple(
            Container(attribute=name, type=kind, items=items, item_type=of)
            for name, kind, items, of in about.containers
        ),
        sampler_len=about.sampler_len,
        made=max(1, sum(it.new for it in iterators)),
        sampler_class=about.sampler_class,
        collate_name=about.collate_name,
        collate_at=location(about.collate_at),
        batch_size=about.batch_size,
        num_workers=about.num_workers,
        prefetch_factor=about.prefetch_factor,
        pin_memory=about.pin_memory,
        persistent_workers=about.persistent_workers,
        in_order=about.in_order,
        start_method=about.start_method,
        worker_start_ns=tuple(it.start_ns for it in iterators if it.pids and it.started),
        fetch_count=len(fetches),
        fetch_ns=tuple(f.wall for f in fetches),
        load_ns=_mean(f.load for f in fetches),
        load_cpu_ns=_mean(_processing(f) for f in fetches),
        collate_ns=_mean(f.collate for f in fetches),
        collate_cpu_ns=_mean(f.collate_cpu for f in fetches),
        runqueue_ns=_mean(f.runq for f in fetches),
        read_bytes=_mean(f.read for f in fetches),
        rchar_bytes=_mean(f.rchar for f in fetches),
        kernel_ns=_mean(f.kernel for f in fetches),
        major_faults=_mean(f.majflt for f in fetches),
        batch_bytes=_mean(f.bytes for f in all_fetches),
        batch_dtypes={n: sum(d.get(n, 0) for d in weighed) / len(weighed) for n in names} or None,
        drop_last=about.drop_last,
        samples=_mean(f.samples for f in fetches),
        opens=_mean(f.opens for f in fetches),
        open_folders=_folders(fetches),
        opened_bytes=_mean(f.opened for f in all_fetches),
        random=_random(all_fetches),
        fields=_fields(all_fetches),
        pool_cpu_ns=_mean(_of_pools(f) for f in fetches),
        # A thread that Python has ended may still exist in the kernel for a moment, but not in all
        # fetches.
        pool_threads=min(
            (f.pool_threads for f in fetches if f.pool_threads is not None), default=None
        ),
        pictures=_pictures(fetches),
        again=again,
    )


def _of_pools(fetch: FetchRecord) -> int | None:
    """CPU time of the process's other threads; never negative, although two clocks are compared."""
    if fetch.process_cpu is None or fetch.cpu is None:
        return None
    return max(0, fetch.process_cpu - fetch.cpu)


def _folders(fetches: list[FetchRecord]) -> tuple[tuple[str, float], ...]:
    """Files opened per batch by folder, most first."""
    counted = [f for f in fetches if f.opens is not None]
    total: dict[str, int] = defaultdict(int)
    for fetch in counted:
        for folder, opens in fetch.folders:
            total[folder] += opens
    return tuple(
        (name, total[name] / len(counted)) for name in sorted(total, key=lambda n: -total[n])
    )


def _pictures(fetches: list[FetchRecord]) -> Pictures | None:
    """Means over all fetches, including those without a picture."""
    seen = [f.pictures for f in fetches if f.pictures is not None]
    if not seen:
        return None
    sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for fetch in seen:
        for scale, careful, *values in fetch.shrunk:
            sums[scale, careful] = [
                a + b for a, b in zip(sums[scale, careful], values, strict=True)
            ]
    first = next((fetch for fetch in seen if fetch.size), seen[0])
    return Pictures(
        decoded=sum(fetch.decoded for fetch in seen) / len(fetches),
        shrunk=tuple(
            Shrunk(
                scale=scale,
                careful_scale=careful,
                pictures=pictures / len(fetches),
                decode_ns=decode_ns / len(fetches),
                resize_ns=resize_ns / len(fetches),
                between_ns=between_ns / len(fetches),
            )
            for (scale, careful), (pictures, decode_ns, resize_ns, between_ns) in sorted(
                sums.items()
            )
        ),
        at=location(first.at),
        size=first.size,
        to=first.to,
    )


def _random(fetches: list[FetchRecord]) -> bool | None:
    known = [f.random or bool(f.own_generator) for f in fetches if f.random is not None]
    return any(known) if known else None


def _fields(fetches: list[FetchRecord]) -> tuple[BatchField, ...]:
    by_name: dict[str, list[Field]] = defaultdict(list)
    for fetch in fetches:
        for field in fetch.fields:
            by_name[field.name].append(field)
    return tuple(_field(seen) for seen in by_name.values())


def _field(seen: list[Field]) -> BatchField:
    """One field over several batches."""
    read = [f for f in seen if f.min is not None and f.max is not None]
    return BatchField(
        name=seen[0].name,
        dtype=seen[0].dtype,
        bytes=sum(f.bytes for f in seen) / len(seen),
        minimum=min((f.min for f in read if f.min is not None), default=None),
        maximum=max((f.max for f in read if f.max is not None), default=None),
        integral=all(f.integral for f in read) if read else None,
        of_255=all(f.of_255 for f in read) if read else None,
        padded=_padded([f.padded for f in read if f.padded]),
    )


def _padded(batches: list[list[int]]) -> PaddedField | None:
    """``batches``: sequences, positions of each, the longest, and the sum of all lengths."""
    if not batches:
        return None
    return PaddedField(
        sequences=sum(n for n, *_ in batches),
        positions=sum(n * width for n, width, _, _ in batches),
        longest=sum(n * longest for n, _, longest, _ in batches),
        used=sum(used for *_, used in batches),
    )


def _processing(fetch: FetchRecord) -> int | None:
    """On-CPU time of loading the samples, minus the kernel's time for reads from storage.

    A read that misses the page cache costs kernel time (requests, filling pages), up to half of the
    whole on a fast disk; that is storage, not preprocessing. A read that hits the cache counts.
    """
    if fetch.load_cpu is None or not (fetch.kernel and fetch.read):
        return fetch.load_cpu
    missed = fetch.read / max(fetch.read, fetch.rchar or 0)  # mapped files are not read by read()
    return max(0, fetch.load_cpu - round(fetch.kernel * missed))


def _mean(values: Iterable[int | None]) -> float | None:
    """The mean of the measured values; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
