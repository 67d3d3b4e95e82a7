"""One merged trace of a run, for Perfetto and chrome://tracing: torch.profiler's traces and, over
the whole run, the lanes of the probe and the system sampler."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from tdiag.errors import RunError
from tdiag.evidence.from_run import read_run
from tdiag.evidence.from_run.event_files import Process, read_events
from tdiag.evidence.from_run.machine_samples import make_history
from tdiag.evidence.from_run.records import ProcessRecord, TraceRecord
from tdiag.evidence.from_run.traced import clock_shift, trace_file
from tdiag.trace import read_trace
from tdiag.view.chrome_events import Event, Reader, Writer, is_number, to_ns
from tdiag.view.lanes import Clock, counters, lanes, unix_offset
from tdiag.view.overlaps import clipped

FILE = "trace.perfetto.json.gz"
OPENING = """
  in a browser: https://ui.perfetto.dev, Open trace file (it is not uploaded)
  offline:      the same page, if it was visited before;
                or chrome://tracing in Chrome or Chromium, Load (newer ones: first
                enable internal pages at chrome://chrome-urls)
"""
# Kineto's name of a process would conflict with the name from tdiag's lanes.
ABOUT_PROCESS = ("process_name", "process_labels", "process_sort_index")


def write(run_dir: Path) -> tuple[Path, list[str]]:
    """Write ``trace.perfetto.json.gz`` into the run directory, atomically. Returns its path, and
    notes on what could not be read. Time 0 is the first record.

    Raises RunError if nothing was recorded, OSError if the file cannot be written.
    """
    read_run(run_dir)
    processes = read_events(run_dir)
    offset = unix_offset(processes)
    if offset is None:
        hint = "tdiag run SCRIPT --profiling records a run"
        raise RunError(f"no process of {run_dir} recorded anything", hint)
    path = run_dir / FILE
    part = path.with_name(f"{FILE}.{os.getpid()}.part")
    try:
        notes = _write(part, run_dir, processes, offset)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path, notes


def _write(part: Path, run_dir: Path, processes: list[Process], offset: int) -> list[str]:
    history = make_history(run_dir / "system.jsonl", None)
    began = [about.t for p in processes if (about := p.last(ProcessRecord))]
    origin = offset + min([*began, *(history.t_ns[:1] if history else ())])
    clock = Clock(offset, origin)
    notes: list[str] = []
    with Writer(part, {"displayTimeUnit": "ms", "baseTimeNanoseconds": origin}) as writer:
        for events in lanes(processes, clock):
            writer.write(events)
        if history:
            writer.write(counters(history, clock))
        for process in processes:
            for record in process.all(TraceRecord):
                path = trace_file(run_dir / record.file)
                if path is None:
                    notes.append(f"{record.file} is gone")
                    continue
                try:
                    for events in _kineto(path, record, process, clock, notes):
                        writer.write(events)
                except RunError as error:
                    notes.append(error.message)
    return notes


def _kineto(
    path: Path, record: TraceRecord, process: Process, clock: Clock, notes: list[str]
) -> Iterator[list[Event]]:
    """The trace's events, on the merged trace's time."""
    trace = read_trace(path)
    base = trace.metadata.get("baseTimeNanoseconds")
    shift = clock_shift(trace, record, process)
    if shift is None:
        notes.append(f"{path.name} is left out: the offset of its clock is unknown")
        return
    add_ns = (base if isinstance(base, int) else 0) - shift + clock.shift
    # Rows are matched by order, which an unreadable row would shift.
    shorter = {} if trace.damage else clipped(trace)
    row = 0
    reader = Reader(path)
    for events in reader:
        for event in events:
            if event.get("ph") == "X":
                if row in shorter:
                    event["dur"] = shorter[row] / 1000
                row += 1
        yield [event for event in events if _moved(event, add_ns, (process.pid,))]
    if reader.lost:
        notes.append(f"{reader.lost} events of {path.name} could not be read")


def _moved(event: Event, add_ns: int, replaced: Collection[int]) -> bool:
    """Set the event's time; returns whether the event is wanted."""
    if event.get("ph") == "M":
        event["ts"] = 0
        return not (event.get("name") in ABOUT_PROCESS and event.get("pid") in replaced)
    if not is_number(event.get("ts")) or (
        event.get("ph") == "X" and not is_number(event.get("dur"))
    ):
        return False
    event["ts"] = (to_ns(event["ts"]) + add_ns) / 1000
    return True
