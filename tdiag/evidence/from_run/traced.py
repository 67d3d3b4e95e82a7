"""The run's own trace, read with the probe's phases: which phase every instant belonged to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from tdiag.errors import TdiagError
from tdiag.evidence.device import FAULT, Device, DeviceTime
from tdiag.evidence.from_run.event_files import Process, workers_of
from tdiag.evidence.from_run.records import FetchRecord, ProcessRecord, TraceRecord
from tdiag.evidence.from_run.slices import Ints, Slices, StepTable
from tdiag.evidence.from_run.step_phases import PHASES
from tdiag.evidence.from_trace import device_evidence
from tdiag.evidence.from_trace.median_step import event_lane
from tdiag.evidence.steps import StepEvents
from tdiag.evidence.store import Evidence
from tdiag.model.timeline import Timeline
from tdiag.probe.wire import TRACE
from tdiag.trace import Trace, read_trace

FIRST_SPAN = "ProfilerStep#"
LONGEST_OPENING_NS = 1_000_000_000  # with a larger difference, a clock was set in between

Span: TypeAlias = tuple[str, int, int]  # phase, begin, end


def add_trace(
    evidence: Evidence,
    run_dir: Path,
    traced: Process,
    processes: list[Process],
    spans: Sequence[Span],
) -> None:
    """Add the facts of one trace of ``traced``: in a run on a device, one that shows what the
    device did; among these, the one that covers most steps (the later one if equal).

    ``spans``: the phases of the traced steps, on the events' clock. Facts measured without a
    profiler are kept.
    """
    longest: Evidence | None = None
    for record in sorted(traced.all(TraceRecord), key=_steps_and_number, reverse=True):
        found = _facts(evidence, run_dir, record, traced, processes, spans)
        if found is not None and (DeviceTime in found.facts or Device not in evidence.facts):
            _add(evidence, found)
            return
        longest = longest or found
    if longest is not None:
        _add(evidence, longest)


def _steps_and_number(record: TraceRecord) -> tuple[int, int]:
    return record.steps, record.number


def _facts(
    evidence: Evidence,
    run_dir: Path,
    record: TraceRecord,
    traced: Process,
    processes: list[Process],
    spans: Sequence[Span],
) -> Evidence | None:
    """The facts of this trace; None if its file is missing or cannot be read."""
    path = trace_file(run_dir / record.file)
    if path is None:
        return None
    try:
        trace = read_trace(path)
    except TdiagError as error:
        evidence.note("trace-unread", f"a trace could not be read: {error.message}", "warning")
        return None
    shift = clock_shift(trace, record, traced)
    known = [] if shift is None else [(name, b + shift, e + shift) for name, b, e in spans]
    found = device_evidence(trace, known)
    if shift is not None and (step := found.get(StepEvents)):
        found.add(with_workers(step, shift, traced, processes))
    # Without a device torch's CUDA build also complains about the driver, which nothing needs.
    if record.device and record.faults and DeviceTime not in found.facts:
        found.missing[DeviceTime] = f"{FAULT}{record.faults[0]}"
    return found


def _add(evidence: Evidence, found: Evidence) -> None:
    mine, traced = evidence.get(Device), found.get(Device)
    for kind, fact in found.facts.items():
        evidence.facts.setdefault(kind, fact)
    if mine is not None and traced is not None:
        evidence.add(msgspec.structs.replace(mine, capability=traced.capability))
    if DeviceTime in found.facts:  # a clean step has no device lanes
        evidence.facts[Timeline] = found.facts[Timeline]
    absent = {k: why for k, why in found.missing.items() if k not in evidence.facts}
    evidence.missing.update(absent)
    evidence.notes += found.notes


def phase_spans(
    steps: StepTable,
    timeline: Slices,
    phases: Ints,
    windows: Collection[str] = (TRACE,),
) -> list[Span]:
    """The phases of the steps in these windows, in order; neighbours of one phase are joined."""
    chosen = np.flatnonzero(steps.inside(windows)[timeline.in_step])
    spans: list[Span] = []
    number, at = -1, 0
    for i in chosen.tolist():
        if timeline.in_step[i] != number:
            number = int(timeline.in_step[i])
            at = int(steps.begin[number])
        end = at + int(timeline.ns[i])
        name = PHASES[phases[i]]
        if spans and spans[-1][0] == name and spans[-1][2] == at:
            at = spans.pop()[1]
        spans.append((name, at, end))
        at = end
    return spans


def clock_shift(trace: Trace, record: TraceRecord, process: Process) -> int | None:
    """Nanoseconds from the events' clock to the trace's; None: unknown.

    A trace has Unix times, and the probe read both clocks together when it began. On six traces
    this put every loader's call between its own two marks with 15 to 35 µs to spare on either side.
    The moment at which the probe opened the first step's span is 90 to 350 µs too late for that,
    and is used only if the wall clock was set in between.
    """
    first = [number for number, name in enumerate(trace.names) if name.startswith(FIRST_SPAN)]
    begins = trace.ts_ns[np.isin(trace.name, first)]
    opened = int(begins.min()) - record.t if len(begins) and record.t else None
    about = process.last(ProcessRecord)
    if about is None or not about.unix_ns:
        return opened
    paired = about.unix_ns - about.t
    return paired if opened is None or 0 <= opened - paired < LONGEST_OPENING_NS else opened


def trace_file(path: Path) -> Path | None:
    """The trace as it was written, or its compressed form."""
    packed = path.with_name(path.name + ".gz")
    return next((p for p in (path, packed) if p.is_file()), None)


def with_workers(
    step: StepEvents, shift_ns: int, lead: Process, processes: list[Process]
) -> StepEvents:
    """Add a lane for each worker that fetched during the step. ``shift_ns``: the trace's clock −
    tdiag's."""
    lanes = [
        event_lane(
            f"worker {worker}", "worker", spans, step.begin_ns, step.begin_ns + step.duration_ns
        )
        for worker, spans in _fetches(shift_ns, lead, processes)
    ]
    seen = (msgspec.structs.replace(found, partial=True) for found in lanes if found.events)
    return msgspec.structs.replace(step, lanes=(*step.lanes, *seen))


def _fetches(
    shift_ns: int, lead: Process, processes: list[Process]
) -> Iterator[tuple[int, list[tuple[str, int, int]]]]:
    """Each worker's number and what it did; a fetch is cut into loading and collating."""
    for process, _ in workers_of(lead, processes).values():
        spans = []
        fetches = [f for f in process.all(FetchRecord) if f.worker is not None]
        for fetch in fetches:
            begin = fetch.t + shift_ns
            middle = begin + (fetch.wall if fetch.load is None else fetch.load)
            spans.append(("load samples", begin, middle))
            if begin + fetch.wall > middle:
                spans.append(("collate", middle, begin + fetch.wall))
        if fetches:
            yield fetches[0].worker or 0, spans
