"""The folder that TensorBoard is started on: relabelled traces and event files.

A run's folder is kept in the run directory (``view/<run>/``) and made again when any of its inputs
has changed; the folder of another trace is temporary. One folder is one TensorBoard run, and each
of several ranks has one below it; their traces are in one place, because the plugin's Distributed
view needs this.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tdiag import __version__
from tdiag.errors import RunError
from tdiag.evidence.device import DeviceTime
from tdiag.evidence.from_run import read_run
from tdiag.evidence.from_run.event_files import Process, lead_of, read_events
from tdiag.evidence.from_run.machine_samples import make_history
from tdiag.evidence.from_run.records import TraceRecord
from tdiag.evidence.from_run.traced import clock_shift, trace_file
from tdiag.evidence.from_trace.trace_files import HANDLER_NAME, TracedFile
from tdiag.model.diagnosis import Diagnosis
from tdiag.trace import Trace, read_trace
from tdiag.view import curves, eventfile
from tdiag.view.chrome_events import Event
from tdiag.view.cut import Cut
from tdiag.view.lanes import Clock, counters, lanes, unix_offset
from tdiag.view.relabel import relabel

FOLDER, STAMP = "view", "made.json"
_NODE_AND_NUMBER = re.compile(r".+_\d+")  # a worker name that the plugin splits into node and rank


@dataclass
class View:
    """``folder``: one TensorBoard run. ``steps``: how many of a trace's steps to copy; None = all.
    ``events``: how many the plugin must read. ``notes``: what is missing, and why."""

    folder: Path
    steps: int | None = None
    events: int = 0
    notes: list[str] = field(default_factory=list)


def of_run(run_dir: Path, diagnosis: Diagnosis, scratch: Path, steps: int | None = None) -> View:
    """A run's view, kept in the run directory, or in ``scratch`` if that cannot be written.
    ``steps``: how many of the trace's steps to copy.

    Raises RunError if the run cannot be read, OSError if the view cannot be written.
    """
    read_run(run_dir)
    home = (run_dir if os.access(run_dir, os.W_OK) else scratch) / FOLDER
    view = View(home / run_dir.name, steps)
    made_from = [*_state(run_dir), f"steps {steps}"]
    stamp = home / STAMP
    try:
        kept = json.loads(stamp.read_text())
        if kept["from"] == made_from and view.folder.is_dir():
            view.events, view.notes = kept["events"], kept["notes"]
            return view
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none yet, or a broken one: make it again
    shutil.rmtree(home, ignore_errors=True)
    view.folder.mkdir(parents=True)
    _make_run(run_dir, diagnosis, view)
    kept = {"from": made_from, "events": view.events, "notes": view.notes}
    stamp.write_text(json.dumps(kept, indent=1) + "\n")
    return view


def _state(run_dir: Path) -> list[str]:
    """Everything that the view depends on, to detect changes."""
    parts = ("run.json", "diagnosis.json", "system.jsonl", "events/*", "tensorboard/*")
    files = [path for part in parts for path in sorted(run_dir.glob(part))]
    about = [(str(path.relative_to(run_dir)), path.stat()) for path in files]
    return [f"tdiag {__version__}", *(f"{n} {st.st_size} {st.st_mtime_ns}" for n, st in about)]


def _make_run(run_dir: Path, diagnosis: Diagnosis, view: View) -> None:
    processes = read_events(run_dir)
    offset = unix_offset(processes) or 0
    lead = lead_of(processes)
    training = [p for p in processes if p.steps]
    history = make_history(run_dir / "system.jsonl", None)
    shown = {view.folder: curves.of_system(history, offset) if history else {}}
    for process in training if lead else ():
        steps = curves.of_process(process, lead or process, offset)
        if process is lead:
            steps |= curves.of_budget({c.component: c.ns for c in diagnosis.budget}, steps)
        place = view.folder / f"rank {process.rank}" if len(training) > 1 else view.folder
        shown[place] = shown.get(place, {}) | steps
        _copy_trace(run_dir, process, processes, view)
    began = (history.t_ns[0] + offset) / 1e9 if history else 0.0
    _write(shown, view, diagnosis, began)


def _write(
    shown: Mapping[Path, curves.Curves], view: View, diagnosis: Diagnosis, unix_s: float
) -> None:
    for place, found in shown.items():
        texts = curves.report_texts(diagnosis) if place == view.folder else {}
        eventfile.write(place, found, texts, unix_s)


def _copy_trace(run_dir: Path, process: Process, processes: list[Process], view: View) -> None:
    """Copy the trace that the diagnosis used: the one with most steps, the later one if equal."""
    records = sorted(process.all(TraceRecord), key=lambda record: (record.steps, record.number))
    for record in reversed(records):
        path = trace_file(run_dir / record.file)
        if path is None:
            view.notes.append(f"{record.file} is gone")
            continue
        try:
            trace = read_trace(path)
        except RunError as error:
            view.notes.append(error.message)
            continue
        shift = clock_shift(trace, record, process)
        around = (
            _lanes(run_dir, processes, trace, shift) if shift is not None and len(trace) else []
        )
        _relabelled(trace, view, process.rank, around)
        return


def _lanes(
    run_dir: Path, processes: list[Process], trace: Trace, shift: int
) -> Iterator[list[Event]]:
    """The run's lanes within the time of the trace."""
    begin, end = int(trace.ts_ns.min()), int(trace.ends().max())
    clock, length_us = Clock(shift, begin), (end - begin) / 1e3
    history = make_history(run_dir / "system.jsonl", None)
    for events in (*lanes(processes, clock), counters(history, clock) if history else []):
        yield [
            e
            for e in events
            if e["ph"] == "M" or (e["ts"] < length_us and e["ts"] + e.get("dur", 0) > 0)
        ]


def _relabelled(trace: Trace, view: View, rank: int, around: Iterable[list[Event]] = ()) -> None:
    match = HANDLER_NAME.match(trace.path.name)
    worker = match["worker"] if match else re.sub(r"\.json(\.gz)?$", "", trace.path.name)
    if not _NODE_AND_NUMBER.fullmatch(worker):
        worker = f"{worker}_{rank}"
    target = view.folder / f"{worker}.pt.trace.json.gz"
    cut = None if view.steps is None else Cut(trace, view.steps)
    if cut is not None and not cut.steps:
        view.notes.append(f"{trace.path.name} marks no steps: all of it is shown")
        cut = None
    if lost := relabel(trace, target, around, cut):
        view.notes.append(f"{lost} events of {trace.path.name} could not be read")
    view.events += cut.events if cut else len(trace)


def of_traces(
    name: str,
    ranks: Mapping[int, TracedFile],
    diagnosis: Diagnosis,
    scratch: Path,
    steps: int | None = None,
) -> View:
    """The view of other traces, by rank, in ``scratch``; ``name``: its title. ``steps``: how many
    of each trace's steps to copy."""
    view = View(scratch / (re.sub(r"[^\w.-]+", "_", name) or "trace"), steps)
    view.folder.mkdir(parents=True)
    shown: dict[Path, curves.Curves] = {view.folder: {}}
    for rank, found in ranks.items():
        device = found.evidence.get(DeviceTime)
        budget = {c.component: float(c.ns) for c in diagnosis.budget}
        place = view.folder
        if len(ranks) > 1:
            place, budget = place / f"rank {rank}", device.components_ns if device else {}
        traced = curves.of_trace(found.evidence)
        shown[place] = traced | curves.of_budget(budget, traced)
        _relabelled(read_trace(found.path), view, rank)
    _write(shown, view, diagnosis, 0.0)
    return view


def gather(views: Sequence[View], folder: Path) -> Path:
    """A log folder that contains these views, each with its own name."""
    folder.mkdir()
    for view in views:
        place = folder / view.folder.name
        number = 1
        while place.exists():
            number += 1
            place = folder / f"{view.folder.name}-{number}"
        place.symlink_to(view.folder.resolve())
    return folder
