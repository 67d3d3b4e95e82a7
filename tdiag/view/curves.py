"""Step times, budget and system as TensorBoard curves, times in ms; findings as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tdiag.evidence.from_run.clean import Clean, find_clean
from tdiag.evidence.from_run.event_files import Process
from tdiag.evidence.from_run.step_phases import PHASES, phases_per_step
from tdiag.evidence.machine import SystemHistory
from tdiag.evidence.steps import TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Diagnosis
from tdiag.probe.wire import PROFILED
from tdiag.report.markdown import sections
from tdiag.report.of_diagnosis import document
from tdiag.report.page import Page
from tdiag.report.words import component
from tdiag.view.eventfile import Scalar
from tdiag.view.lanes import UNITS, phases_of

Curves = dict[str, list[Scalar]]

_FOLD = re.compile(r"^<details><summary>(.*)</summary>$", re.MULTILINE)

# TensorBoard scales a chart to the middle nine tenths of its points; with two points for each of
# two runs that would be none.
LEVEL_POINTS = 50


def of_process(process: Process, lead: Process, offset_ns: int) -> Curves:
    """A rank's steps: ``step/clean`` and ``step/profiled``, and the phases of the clean ones.

    Clean steps are those in the lead's clean windows: while the lead is profiled, all ranks wait
    for it. ``offset_ns``: from the events' clock to Unix time. x is the step's number.
    """
    steps = process.steps
    durations = steps.durations.tolist()
    clean = find_clean(lead)
    mask = _clean_steps(process, lead, clean)
    profiled = steps.inside(PROFILED)
    number = steps.number.tolist()
    at = [(t + offset_ns) / 1e9 for t in steps.end.tolist()]

    def curve(mask: npt.NDArray[np.bool_], ns: Sequence[int]) -> list[Scalar]:
        return [Scalar(number[i], at[i], ns[i] / 1e6) for i in np.flatnonzero(mask).tolist()]

    curves = {
        "step/clean ms": curve(mask, durations),
        "step/profiled ms": curve(profiled, durations),
    }
    timeline, phases = phases_of(process)
    table = phases_per_step(timeline, phases, timeline.ns)
    for column, name in enumerate(PHASES):
        if table[mask, column].any():
            curves[f"phase/{component(name).label} ms"] = curve(mask, table[:, column].tolist())
    return {tag: points for tag, points in curves.items() if points}


def _clean_steps(process: Process, lead: Process, clean: Clean | None) -> npt.NDArray[np.bool_]:
    if clean is None:
        return np.zeros(len(process.steps), np.bool_)
    if process is lead:
        return clean.mask
    return np.array([clean.holds(t) for t in process.steps.end.tolist()], np.bool_)


def of_trace(evidence: Evidence) -> Curves:
    """The traced steps. x is the step's place in the trace."""
    steps = evidence.get(TracedSteps)
    durations = steps.durations_ns if steps else ()
    points = [Scalar(i, i, ns / 1e6) for i, ns in enumerate(durations)]
    return {"step/traced ms": points} if points else {}


def of_budget(components_ns: Mapping[str, float], steps: Curves) -> Curves:
    """Each component's mean per step, constant over the steps in which it was measured."""
    measured = next(iter(steps.values()), [Scalar(0, 0.0, 0.0)])
    at = measured[:: max(1, len(measured) // LEVEL_POINTS)]
    return {
        f"budget/{component(name).label} ms": [Scalar(p.step, p.unix_s, ns / 1e6) for p in at]
        for name, ns in components_ns.items()
    }


def of_system(history: SystemHistory, offset_ns: int) -> Curves:
    """The machine over the whole run. x is in ms since the first sample."""
    curves: Curves = {}
    for strip in history.strips:
        unit, scale = UNITS.get(strip.unit, (strip.unit, 1.0))
        points = [
            Scalar((end - history.t_ns[0]) // 1_000_000, (end + offset_ns) / 1e9, value / scale)
            for (_, end), value in zip(pairwise(history.t_ns), strip.values, strict=True)
            if value is not None
        ]
        if points:
            curves[f"system/{strip.name} {unit}"] = points
    return curves


def report_texts(diagnosis: Diagnosis) -> dict[str, str]:
    """The report's parts in Markdown, by tag. TensorBoard shows HTML as text, so parts that are
    folded elsewhere are open here; it sorts tags by their text, hence the numbers."""
    texts = {}
    found = sections(document(diagnosis), Page(base_dir=Path.cwd()))
    for number, (title, lines) in enumerate(found):
        text = _FOLD.sub(r"**\1**", "\n".join(lines)).replace("\n</details>", "")
        texts[f"report/{number:02} {title}"] = text
    return texts
