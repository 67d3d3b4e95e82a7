"""The run's own trace, read with what the probe knows: which phase every instant belonged to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tdiag.errors import TdiagError
from tdiag.evidence.device import DeviceTime
from tdiag.evidence.from_run.events import Process
from tdiag.evidence.from_run.phases import PHASES
from tdiag.evidence.from_run.records import ProcessRecord, TraceRecord
from tdiag.evidence.from_run.steps import Step
from tdiag.evidence.from_run.timeline import Ints
from tdiag.evidence.from_run.timeline import Timeline as Slices
from tdiag.evidence.from_run.worker_lanes import with_workers
from tdiag.evidence.from_trace import device_evidence
from tdiag.evidence.history import StepEvents
from tdiag.evidence.store import Evidence
from tdiag.model.timeline import Timeline
from tdiag.trace import Trace, read_trace

WINDOW = "trace"
FIRST_SPAN = "ProfilerStep#"
LONGEST_OPENING_NS = 1_000_000_000  # of a span; clocks that differ by more were set in between

Span: TypeAlias = tuple[str, int, int]  # phase, begin, end


def add_trace(
    evidence: Evidence,
    run_dir: Path,
    traced: Process,
    processes: list[Process],
    spans: Sequence[Span],
) -> None:
    """Add the facts of the trace of ``traced`` that covers most steps (the later one if equal).

    ``spans``: the phases of the traced steps, on the events' clock. Facts measured without a
    profiler stay as they are.
    """
    records = sorted(traced.all(TraceRecord), key=lambda record: (record.steps, record.number))
    for record in reversed(records):
        path = trace_file(run_dir / record.file)
        if path is None:
            continue
        try:
            trace = read_trace(path)
        except TdiagError as error:
            evidence.note("trace-unread", f"a trace could not be read: {error.message}", "warning")
            continue
        shift = clock_shift(trace, record, traced)
        known = [] if shift is None else [(name, b + shift, e + shift) for name, b, e in spans]
        found = device_evidence(trace, known)
        if shift is not None and (step := found.get(StepEvents)):
            found.add(with_workers(step, shift, traced, processes))
        for kind, fact in found.facts.items():
            evidence.facts.setdefault(kind, fact)
        if DeviceTime in found.facts:  # a clean step has no device lanes
            evidence.facts[Timeline] = found.facts[Timeline]
        absent = {k: why for k, why in found.missing.items() if k not in evidence.facts}
        evidence.missing.update(absent)
        evidence.notes += found.notes
        return


def phase_spans(
    steps: Sequence[Step],
    timeline: Slices,
    phases: Ints,
    windows: Collection[str] = (WINDOW,),
) -> list[Span]:
    """The phases of the steps of these windows, in order, neighbours of one phase joined."""
    traced = np.array([step.w in windows for step in steps], np.bool_)
    chosen = np.flatnonzero(traced[timeline.in_step])
    spans: list[Span] = []
    number, at = -1, 0
    for i in chosen.tolist():
        if timeline.in_step[i] != number:
            number = int(timeline.in_step[i])
            at = steps[number].s
        end = at + int(timeline.ns[i])
        name = PHASES[phases[i]]
        if spans and spans[-1][0] == name and spans[-1][2] == at:
            at = spans.pop()[1]
        spans.append((name, at, end))
        at = end
    return spans


def clock_shift(trace: Trace, record: TraceRecord, process: Process) -> int | None:
    """Nanoseconds from the events' clock to the trace's; None: unknown.

    A trace has Unix times, and the probe paired both clocks when it began. On six traces that
    put every loader's call between its own two marks with 15 to 35 µs to spare on either side;
    the moment at which the probe opened the first step's span comes 90 to 350 µs too late for
    that, and is used only where the wall clock was set in between.
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
