"""The run's own trace, read with what the probe knows: which phase every instant belonged to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tdiag.errors import TdiagError
from tdiag.evidence.device import DeviceTime
from tdiag.evidence.from_run.events import Process
from tdiag.evidence.from_run.phases import PHASES
from tdiag.evidence.from_run.records import StepRecord, TraceRecord
from tdiag.evidence.from_run.timeline import Ints
from tdiag.evidence.from_run.timeline import Timeline as Slices
from tdiag.evidence.from_run.worker_lanes import with_workers
from tdiag.evidence.from_trace import device_evidence
from tdiag.evidence.history import StepEvents
from tdiag.evidence.store import Evidence
from tdiag.evidence.timeline import Timeline
from tdiag.trace import Trace, read_trace

WINDOW = "trace"
FIRST_SPAN = "ProfilerStep#"

Span: TypeAlias = tuple[str, int, int]  # phase, begin, end


def add_trace(
    evidence: Evidence,
    run_dir: Path,
    lead: Process,
    processes: list[Process],
    spans: Sequence[Span],
) -> None:
    """Add the facts of the trace that covers most steps (the later one if equal).

    ``spans``: the phases of the traced steps, on the events' clock. Facts measured without a
    profiler stay as they are.
    """
    records = sorted(lead.all(TraceRecord), key=lambda record: (record.steps, record.number))
    for record in reversed(records):
        path = _file(run_dir / record.file)
        if path is None:
            continue
        try:
            trace = read_trace(path)
        except TdiagError as error:
            evidence.notes.append(f"a trace could not be read: {error.message}")
            continue
        shift = _shift_ns(trace, record)
        known = [] if shift is None else [(name, b + shift, e + shift) for name, b, e in spans]
        traced = device_evidence(trace, known)
        if shift is not None and (step := traced.get(StepEvents)):
            traced.add(with_workers(step, shift, lead, processes))
        for kind, fact in traced.facts.items():
            evidence.facts.setdefault(kind, fact)
        if DeviceTime in traced.facts:  # a clean step has no device lanes
            evidence.facts[Timeline] = traced.facts[Timeline]
        absent = {k: why for k, why in traced.missing.items() if k not in evidence.facts}
        evidence.missing.update(absent)
        evidence.notes += traced.notes
        return


def phase_spans(steps: Sequence[StepRecord], timeline: Slices, phases: Ints) -> list[Span]:
    """The phases of the steps of window ``trace``, in order, neighbours of one phase joined."""
    traced = np.array([step.w == WINDOW for step in steps], np.bool_)
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


def _shift_ns(trace: Trace, record: TraceRecord) -> int | None:
    """The trace's clock − the events': the probe wrote down the moment at which it opened the
    trace's first step. None where either does not tell."""
    first = [number for number, name in enumerate(trace.names) if name.startswith(FIRST_SPAN)]
    begins = trace.ts_ns[np.isin(trace.name, first)]
    return int(begins.min()) - record.t if len(begins) and record.t else None


def _file(path: Path) -> Path | None:
    """The trace as it was written, or its compressed form."""
    packed = path.with_name(path.name + ".gz")
    return next((p for p in (path, packed) if p.is_file()), None)
