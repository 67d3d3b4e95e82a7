"""How long the program took until its first step ended, by part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tdiag.evidence.from_run.event_files import Process, workers_of
from tdiag.evidence.from_run.records import (
    BoundaryRecord,
    FetchRecord,
    FinishRecord,
    IteratorRecord,
    ProcessRecord,
)
from tdiag.evidence.from_run.stack_files import read_stacks_file
from tdiag.evidence.from_run.stack_samples import make_stacks, samples_in
from tdiag.evidence.machine import Startup
from tdiag.evidence.sampled import Stacks
from tdiag.probe.wire import startup_stacks_file

_BY_TDIAG = ("complete", "steps", "time", "asked")  # why a watched run with --profiling ends


def make_startup(
    run_dir: Path, lead: Process, processes: list[Process], run: Mapping[str, Any],
    config: Mapping[str, Any],
) -> Startup | None:  # fmt: skip
    """The start-up; None if the probe did not record when the program began."""
    about, first = lead.last(ProcessRecord), lead.last(BoundaryRecord)
    if about is None or first is None or not about.started or first.t < about.t:
        return None
    at = about.started
    parts: dict[str, int] = {}
    for name, until in _milestones(lead, processes, about, first.t):
        if until > at:
            parts[name] = until - at
            at = until
    stacks = _stacks(run_dir, lead, processes)
    return Startup(parts_ns=parts, run_ns=_run_ns(lead, about, run, config), stacks=stacks)


def _stacks(run_dir: Path, lead: Process, processes: list[Process]) -> Stacks | None:
    """Of the training thread; None if it was not sampled."""
    for path in sorted(run_dir.glob(startup_stacks_file("*"))):
        file = read_stacks_file(path)
        samples = samples_in(file, lead, processes) if file else None
        if samples is not None and samples.training:
            return make_stacks(samples, 0.0)
    return None


def _milestones(
    lead: Process, processes: list[Process], about: ProcessRecord, end: int
) -> list[tuple[str, int]]:
    """What ended when, in order of time; the rest until ``end`` is the first step."""
    found = [("imports", about.import_torch), ("import torch", about.t)]
    iterators = [it for it in lead.all(IteratorRecord) if it.t <= end]
    if iterators:
        made = iterators[0]
        fetched = [f.t + f.wall for f in _fetches(lead, processes) if made.t - made.start_ns <= f.t]
        found += [("set-up", made.t - made.start_ns), ("workers", made.t)]
        found += [("first batch", min(fetched, default=0))]
    return [(name, until) for name, until in found if until <= end] + [("first step", end)]


def _fetches(lead: Process, processes: list[Process]) -> list[FetchRecord]:
    workers = [worker for worker, _ in workers_of(lead, processes).values()]
    return [fetch for process in (lead, *workers) for fetch in process.all(FetchRecord)]


def _run_ns(
    lead: Process, about: ProcessRecord, run: Mapping[str, Any], config: Mapping[str, Any]
) -> int | None:
    finish, ended = lead.last(FinishRecord), run.get("end_unix_ns")
    cut_short = bool(config.get("profiling")) and (finish is None or finish.why in _BY_TDIAG)
    if cut_short or not ended or not about.unix_ns or run.get("exit_code"):
        return None
    return int(ended) - about.unix_ns + about.t - about.started
