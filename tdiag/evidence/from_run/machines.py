"""A run directory of several machines: all their processes, on one clock.

Each machine has a run directory of its own (``tdiag.launch.joining``), with a monotonic clock that
began when it booted. The wall's clock, which every process wrote down beside it, brings them
together; and where ranks step together their steps tell how far that is off.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tdiag.evidence.from_run.digest import Digest
from tdiag.evidence.from_run.event_files import (
    Away,
    Process,
    at_the_time_of,
    lead_of,
    nearest_of,
    read_events,
)
from tdiag.evidence.from_run.records import IteratorRecord, ProcessRecord
from tdiag.probe.wire import RUN, parts

# Linux gives no process a higher number than 2²² (proc(5), pid_max).
PID_BITS = 22


@dataclass(frozen=True)
class Job:
    """``home``: the run directory of the machine whose rank speaks for the run, with its
    ``processes``. ``elsewhere``: those of the other machines, their times by home's clock, their
    process ids made unique. ``members``: their run directories, home's included. ``foreign``: run
    directories that are left out, of another job or without a clock."""

    home: Path
    processes: list[Process]
    elsewhere: list[Process]
    members: tuple[Path, ...]
    foreign: tuple[Path, ...] = ()

    @property
    def beside(self) -> list[Process]:
        """Those of home's own machine, below a tdiag of their own."""
        host = host_of(self.home)
        return [process for process in self.elsewhere if process.away and process.away.host == host]


def home_of(run_dir: Path) -> Path:
    """The part with the rank that speaks for the run; of one machine the run directory itself."""
    return run_dir if len(parts(run_dir)) == 1 else read_job(run_dir, Digest()).home


def read_job(run_dir: Path, kept: Digest) -> Job:
    """``kept``: of a run on one machine, those whose records are read only when asked for."""
    folders = [Path(part) for part in parts(run_dir)]
    if len(folders) == 1:
        return Job(run_dir, read_events(run_dir, kept.heads), [], (run_dir,))
    read = {folder: read_events(folder) for folder in folders}
    leads = {folder: lead for folder in folders if (lead := lead_of(read[folder]))}
    home = min(leads, key=lambda f: (leads[f].rank, -leads[f].head.steps), default=run_dir)
    # A job that was started again may have its ranks on other machines than before.
    for folder in leads.keys() - {home}:
        leads[folder] = nearest_of(leads[home], read[folder]) or leads[folder]
    foreign = _foreign(home, {f: at_the_time_of(leads[f], read[f])[0] for f in leads})
    elsewhere: list[Process] = []
    for number, folder in enumerate(folders, 1):
        if folder == home or folder in foreign or folder not in leads:
            continue
        shift = _shift(leads[home], leads[folder])
        if shift is None:
            foreign.append(folder)
        else:
            away = Away(host_of(folder), folder, shift)
            elsewhere += [_brought(process, away, number) for process in read[folder]]
    members = tuple(folder for folder in folders if folder not in foreign)
    return Job(home, read[home], elsewhere, members, tuple(foreign))


def _foreign(home: Path, training: dict[Path, list[Process]]) -> list[Path]:
    """Those whose ranks are not further ranks of home's job: another number of ranks, or a rank
    that it has already."""
    found: list[Path] = []
    sizes = {process.world_size for process in training.get(home, ())}
    ranks = {process.rank for process in training.get(home, ())}
    for folder, processes in training.items():
        if folder == home:
            continue
        mine = {process.rank for process in processes}
        if mine & ranks or {process.world_size for process in processes} != sizes or sizes == {1}:
            found.append(folder)
        ranks |= mine
    return found


def _shift(home: Process, other: Process) -> int | None:
    """What to add to a time of the other machine; None where a clock is unknown."""
    one, two = home.head.clock_ns, other.head.clock_ns
    if one is None or two is None:
        return None
    shift = two - one
    # Ranks that wait for each other in each step end the same one at nearly the same time.
    _, mine, theirs = np.intersect1d(home.steps.number, other.steps.number, return_indices=True)
    if not len(mine):
        return shift
    apart = other.steps.end[theirs] + shift - home.steps.end[mine]
    low, middle, high = np.percentile(apart, (25, 50, 75))
    step = float(np.median(home.steps.durations))
    together = high - low <= step
    return shift - round(middle) if together and abs(middle) > step / 2 else shift


def _brought(process: Process, away: Away, number: int) -> Process:
    """``number``: of the machine."""
    beyond = number << PID_BITS
    process.pid += beyond
    process.away = away
    for records in process.records.values():
        for record in records:
            if moment := getattr(record, "t", 0):
                record.t = moment + away.shift_ns  # type: ignore[attr-defined]
            if isinstance(record, IteratorRecord):
                record.pids = [pid + beyond for pid in record.pids]
            elif isinstance(record, ProcessRecord):
                record.pid += beyond
                record.started += away.shift_ns
                record.import_torch += away.shift_ns
    steps, ns = process.steps, away.shift_ns
    process.steps = replace(steps, begin=steps.begin + ns, end=steps.end + ns, at=steps.at + ns)
    return process


def host_of(part: Path) -> str:
    """The machine's name, from ``run.json``; the folder's where that has none."""
    try:
        return str(json.loads((part / RUN).read_text())["hostname"])
    except (OSError, ValueError, KeyError, TypeError):
        return part.name
