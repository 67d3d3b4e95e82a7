"""A training process's steps, cut at their marks, with roles, phases and which steps are clean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from msgspec import structs

from tdiag.evidence.from_run.clean import Clean, beside_frac, blocked_frac, find_clean
from tdiag.evidence.from_run.event_files import Process
from tdiag.evidence.from_run.records import BoundaryRecord, ModuleRecord, Record, WindowRecord
from tdiag.evidence.from_run.roles import Mask, Roles, assign_roles
from tdiag.evidence.from_run.slices import Ints, Slices, StepTable, cut
from tdiag.evidence.from_run.step_phases import (
    PHASES,
    as_stacks_show,
    make_phases,
    phase_of_slices,
    phases_per_step,
)
from tdiag.evidence.from_trace.intervals import union
from tdiag.evidence.from_trace.median_step import lane
from tdiag.evidence.steps import SHOWN, Phases, component_of
from tdiag.model.timeline import Timeline
from tdiag.probe.wire import BASELINE, BY_BATCH, SAMPLE, SETTLE

_SHOWN = [PHASES.index(name) for name in SHOWN]


@dataclass(frozen=True)
class Timed:
    """``slices``: each slice's index into PHASES. ``boundary``: what ends a step. ``phases``: of
    the clean steps."""

    process: Process
    clean: Clean
    boundary: str
    modules: Mapping[int, ModuleRecord]
    timeline: Slices
    roles: Roles
    slices: Ints
    phases: Phases


Divided: TypeAlias = tuple[str, dict[int, ModuleRecord], Slices, Roles, Ints]


def timed(process: Process) -> Timed | None:
    """None if no step is clean (:func:`tdiag.evidence.from_run.clean.why_none`)."""
    clean = find_clean(process)
    if clean is None:
        return None
    boundary, modules, timeline, roles, slices = divided(process)
    phases = make_phases(timeline, roles, slices, clean.mask, modules)
    sampled = process.steps.inside({SAMPLE})
    per_step = phases_per_step(timeline, as_stacks_show(timeline, slices), timeline.ns)
    phases = structs.replace(
        phases,
        around_scale=around_scale(per_step, clean.mask, sampled),
        shown_frac=shown_frac(per_step, clean.mask, sampled),
    )
    step_ns = sum(phases.wall_ns.values())
    if (busy := beside_frac(process, clean)) is not None:
        phases = structs.replace(phases, beside_ns=busy * step_ns)
    if (blocked := blocked_frac(process, clean)) is not None:
        phases = structs.replace(phases, blocked_ns=blocked * step_ns)
    return Timed(process, clean, boundary, modules, timeline, roles, slices, phases)


def around_scale(per_step: Ints, clean: Mask, sampled: Mask) -> float:
    """:attr:`Phases.around_scale`. ``per_step``: steps × PHASES, ns. The clean steps' mean or
    median, whichever is nearer to the sampled steps: what a few steps do, at the end of an epoch,
    changes only the mean, and may have happened in one of the two windows only."""
    around = per_step[:, [PHASES.index(name) for name in ("after_step", "prepare")]].sum(axis=1)
    rest = np.delete(per_step, _SHOWN, axis=1).sum(axis=1)
    seen = around[sampled].sum() / max(rest[sampled].sum(), 1)
    if not seen:
        return 1.0
    usual = [f(around[clean]) / max(f(rest[clean]), 1.0) / seen for f in (np.mean, np.median)]
    return float(min(max(1.0, min(usual)), max(usual)))


def shown_frac(per_step: Ints, clean: Mask, sampled: Mask) -> dict[str, float]:
    """:attr:`Phases.shown_frac`. ``per_step``: steps × PHASES, ns."""
    alike = per_step[sampled].sum(axis=0) > 0
    spent = per_step[clean].sum(axis=0) * alike
    whole = max(int(spent.sum()), 1)
    return {PHASES[i]: int(spent[i]) / whole for i in _SHOWN if spent[i]}


def divided(process: Process) -> Divided:
    """All steps of the process, clean or not: what ends them, the modules by number, the slices,
    their roles, and each slice's index into PHASES."""
    about = process.last(BoundaryRecord)
    boundary = about.source if about else BY_BATCH
    timeline = cut(process.steps)
    modules = {module.id: module for module in process.all(ModuleRecord)}
    roles = assign_roles(timeline, modules, boundary)
    return boundary, modules, timeline, roles, phase_of_slices(timeline, roles, boundary)


def beside(lead: Process, other: Process) -> Timed | None:
    """``other`` in the lead's clean windows; None if it is on another machine, with another
    clock."""
    same = in_windows_of(lead, other)
    return timed(same) if same.steps.inside({BASELINE}).any() else None


def in_windows_of(lead: Process, other: Process) -> Process:
    """``other`` with each step assigned to the lead's window at the middle of the step."""
    steps = _in_windows_of(lead, other.steps)
    records: dict[type[Record], list[Record]] = {**other.records}
    records[WindowRecord] = list(lead.all(WindowRecord))
    return Process(other.pid, records, steps, name=other.name, away=other.away)


def clean_beside(lead: Process, number: Ints, begin: Ints, end: Ints) -> Mask | None:
    """Of another rank's steps those in the lead's clean windows; None if there are none. On a CPU,
    where the records of the rank do not matter."""
    none = np.empty(0, np.int64)
    marks = dict.fromkeys(("code", "at", "cpu", "arg", "step"), none)
    steps = StepTable(number=number, begin=begin, end=end, window=none.astype(str), **marks)
    steps = _in_windows_of(lead, steps)
    if not steps.inside({BASELINE}).any():
        return None
    clean = find_clean(Process(0, {WindowRecord: list(lead.all(WindowRecord))}, steps))
    return clean.mask if clean else None


def _in_windows_of(lead: Process, steps: StepTable) -> StepTable:
    middle = (steps.begin + steps.end) // 2
    place = np.searchsorted(lead.steps.begin, middle, "right") - 1
    held = (place >= 0) & (middle < lead.steps.end[place])
    return replace(steps, window=np.where(held, lead.steps.window[place], SETTLE))


def clean_step(slices: Slices, phases: Ints, clean: Clean) -> Timeline:
    """``phases``: of each slice, an index into PHASES. The timeline has one lane: the training
    thread."""
    durations = np.bincount(slices.in_step, slices.ns, slices.steps).astype(np.int64)
    steps = np.flatnonzero(clean.mask)
    ordered = steps[np.argsort(durations[steps], kind="stable")]
    step = ordered[(len(ordered) - 1) // 2]
    inside = slices.in_step == step
    end = np.cumsum(slices.ns[inside])
    begin, phase = end - slices.ns[inside], phases[inside]
    kinds = {
        component_of(name): union(begin[phase == number], end[phase == number])
        for number, name in enumerate(PHASES)
        if (phase == number).any()
    }
    length = int(durations[step])
    lanes = (lane("host", kinds, length),)
    return Timeline(step_ns=length, steps=len(steps), source=BASELINE, lanes=lanes)
