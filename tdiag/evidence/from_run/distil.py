"""A machine's processes, each training one distilled to what a comparison of ranks needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tdiag.evidence.from_run.digest import (
    Batches,
    Distilled,
    RankSteps,
    Sums,
    key_of,
    read_digest,
    write_digest,
)
from tdiag.evidence.from_run.event_files import (
    Process,
    Unread,
    fetches_of,
    read_events,
    training_of,
)
from tdiag.evidence.from_run.records import LoaderRecord
from tdiag.evidence.from_run.step_phases import PHASES, phases_per_step
from tdiag.evidence.from_run.timed import divided
from tdiag.probe.wire import events_files


def read_part(part: Path) -> list[Process]:
    """Every process of this run directory that wrote events. If several train, they are distilled
    first, unless that has been done, and their records are read only when needed."""
    key = key_of(part)
    kept = read_digest(part, key)
    if not kept:
        processes = read_events(part)
        training = training_of(processes)
        if len(training) < 2 and all(process.world_size < 2 for process in training):
            return processes
        by_pid = {process.pid: process for process in processes}
        kept = {p.name: _distilled(p, by_pid, p in training) for p in processes}
        write_digest(part, key, kept)
    return [Unread(file, kept[file.name]) for file in events_files(part) if file.name in kept]


def _distilled(process: Process, by_pid: Mapping[int, Process], trains: bool) -> Distilled:
    if not trains:
        return Distilled(process.head, None, {})
    return Distilled(process.head, distilled_steps(process), batches_of(process, by_pid))


def distilled_steps(process: Process) -> RankSteps:
    """All its steps, divided into phases."""
    _, _, timeline, _, slices = divided(process)
    table = phases_per_step(timeline, slices, timeline.ns)
    seen = {name: column for name, column in zip(PHASES, table.T, strict=True) if column.any()}
    return RankSteps.of(process.steps.number, process.steps.begin, process.steps.end, seen)


def batches_of(process: Process, by_pid: Mapping[int, Process]) -> dict[int, Batches]:
    """Of its loaders, as it and its workers fetched them."""
    found = {}
    for loader in sorted({record.id for record in process.all(LoaderRecord)}):
        fetches = list(fetches_of(process, by_pid, {loader}))
        found[loader] = Batches(
            Sums.of(fetch.samples for fetch in fetches if fetch.samples is not None),
            Sums.of(fetch.bytes for fetch in fetches if fetch.bytes is not None),
        )
    return found
