"""A training process's steps: cut at their marks, with roles, phases and what of them is clean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tdiag.evidence.from_run.clean import Clean, find_clean
from tdiag.evidence.from_run.events import Process
from tdiag.evidence.from_run.phases import make_phases, phase_of_slices
from tdiag.evidence.from_run.records import BoundaryRecord, ModuleRecord
from tdiag.evidence.from_run.roles import Roles, assign_roles
from tdiag.evidence.from_run.timeline import Ints, Timeline, cut, durations_of
from tdiag.evidence.kinds import Phases
from tdiag.probe.wire import BY_BATCH


@dataclass(frozen=True)
class Timed:
    """``durations``: ns, one a step. ``slices``: each slice's index into PHASES. ``boundary``:
    what ends a step. ``phases``: of the clean steps."""

    process: Process
    durations: list[int]
    clean: Clean
    boundary: str
    modules: Mapping[int, ModuleRecord]
    timeline: Timeline
    roles: Roles
    slices: Ints
    phases: Phases


def timed(process: Process) -> Timed | None:
    """None where no step is clean (:func:`tdiag.evidence.from_run.clean.why_none`)."""
    durations = durations_of(process.steps)
    clean = find_clean(process, durations)
    if clean is None:
        return None
    about = process.last(BoundaryRecord)
    boundary = about.source if about else BY_BATCH
    timeline = cut(process.steps, durations)
    modules = {module.id: module for module in process.all(ModuleRecord)}
    roles = assign_roles(timeline, modules, boundary)
    slices = phase_of_slices(timeline, roles, boundary)
    phases = make_phases(timeline, roles, slices, clean.mask, modules)
    return Timed(process, durations, clean, boundary, modules, timeline, roles, slices, phases)
