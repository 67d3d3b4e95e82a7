"""A run directory of several machines: all their processes, on one clock.

Each machine has its own run directory (``tdiag.launch.joining``) and a monotonic clock that started
when it booted. The wall clock, which every process recorded with it, aligns them; if ranks step
together, their steps show how far it is off.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from tdiag.evidence.from_run.distil import read_part
from tdiag.evidence.from_run.event_files import (
    Away,
    Process,
    Records,
    Unread,
    at_the_time_of,
    lead_of,
    nearest_of,
)
from tdiag.evidence.from_run.records import IteratorRecord, ProcessRecord
from tdiag.evidence.from_run.slices import Ints, StepTable
from tdiag.probe.wire import RUN, parts

# Linux gives no process a number above 2²² (proc(5), pid_max).
PID_BITS = 22


@dataclass(frozen=True)
class Job:
    """``home``: the run directory of the machine whose rank represents the run, with its
    ``processes``. ``elsewhere``: the processes of the other machines, with times on home's clock
    and unique process ids. ``members``: their run directories, home's included. ``foreign``: run
    directories that are left out, because they belong to another job or have no clock."""

    home: Path
    processes: list[Process]
    elsewhere: list[Process]
    members: tuple[Path, ...]
    foreign: tuple[Path, ...] = ()

    @property
    def beside(self) -> list[Process]:
        """Processes on home's machine that have their own tdiag."""
        host = host_of(self.home)
        return [process for process in self.elsewhere if process.away and process.away.host == host]


def home_of(run_dir: Path) -> Path:
    """The part with the rank that represents the run; for one machine the run directory itself."""
    return run_dir if len(parts(run_dir)) == 1 else read_job(run_dir).home


def read_job(run_dir: Path) -> Job:
    """All processes of the run, on the clock of the machine that represents it."""
    folders = [Path(part) for part in parts(run_dir)]
    if len(folders) == 1:
        return Job(run_dir, read_part(run_dir), [], (run_dir,))
    read = {folder: read_part(folder) for folder in folders}
    leads = {folder: lead for folder in folders if (lead := lead_of(read[folder]))}
    home = min(leads, key=lambda f: (leads[f].rank, -leads[f].head.steps), default=run_dir)
    # A restarted job may have its ranks on other machines than before.
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
    """Machines whose ranks do not fit home's job: another number of ranks, or a rank that exists
    already."""
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
    """The offset to add to the other machine's times; None if a clock is unknown."""
    one, two = home.head.clock_ns, other.head.clock_ns
    if one is None or two is None:
        return None
    shift = two - one
    # Ranks that wait for each other in each step end the same step at nearly the same time.
    number, ends = _ends(other)
    _, mine, theirs = np.intersect1d(home.steps.number, number, return_indices=True)
    if not len(mine):
        return shift
    apart = ends[theirs] + shift - home.steps.end[mine]
    low, middle, high = np.percentile(apart, (25, 50, 75))
    step = float(np.median(home.steps.durations))
    together = high - low <= step
    return shift - round(middle) if together and abs(middle) > step / 2 else shift


def _ends(process: Process) -> tuple[Ints, Ints]:
    """The numbers of its steps and when they ended."""
    if process.distilled and process.distilled.steps:
        number, _, end, _ = process.distilled.steps.columns()
        return number, end
    return process.steps.number, process.steps.end


def _brought(process: Process, away: Away, number: int) -> Process:
    """``number``: the machine's number."""
    beyond = number << PID_BITS
    moved = partial(_moved, beyond=beyond, ns=away.shift_ns)
    process.pid += beyond
    process.away = away
    if isinstance(process, Unread):
        process.moved = moved
    else:
        process.records, process.steps = moved(process.records, process.steps)
    return process


def _moved(
    records: Records, steps: StepTable, *, beyond: int, ns: int
) -> tuple[Records, StepTable]:
    for record in (record for found in records.values() for record in found):
        if moment := getattr(record, "t", 0):
            record.t = moment + ns  # type: ignore[attr-defined]
        if isinstance(record, IteratorRecord):
            record.pids = [pid + beyond for pid in record.pids]
        elif isinstance(record, ProcessRecord):
            record.pid += beyond
            record.started += ns
            record.import_torch += ns
    return records, replace(steps, begin=steps.begin + ns, end=steps.end + ns, at=steps.at + ns)


def host_of(part: Path) -> str:
    """The machine's name from ``run.json``; else the folder's name."""
    try:
        return str(json.loads((part / RUN).read_text())["hostname"])
    except (OSError, ValueError, KeyError, TypeError):
        return part.name
