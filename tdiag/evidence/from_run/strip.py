"""The clean step of median length along time, from the marks of the training thread."""

from __future__ import annotations

import numpy as np

from tdiag.evidence.from_run.clean import BASELINE, Clean
from tdiag.evidence.from_run.phases import PHASES
from tdiag.evidence.from_run.timeline import Ints
from tdiag.evidence.from_run.timeline import Timeline as Slices
from tdiag.evidence.from_trace.intervals import union
from tdiag.evidence.from_trace.median_step import lane
from tdiag.model.timeline import Timeline

RENAMED = {"after_step": "other"}  # as in the budget


def clean_step(slices: Slices, phases: Ints, clean: Clean) -> Timeline:
    """``phases``: of each slice, an index into PHASES. One lane: the training thread."""
    durations = np.bincount(slices.in_step, slices.ns, slices.steps).astype(np.int64)
    steps = np.flatnonzero(clean.mask)
    ordered = steps[np.argsort(durations[steps], kind="stable")]
    step = ordered[(len(ordered) - 1) // 2]
    inside = slices.in_step == step
    end = np.cumsum(slices.ns[inside])
    begin, phase = end - slices.ns[inside], phases[inside]
    kinds = {
        RENAMED.get(name, name): union(begin[phase == number], end[phase == number])
        for number, name in enumerate(PHASES)
        if (phase == number).any()
    }
    length = int(durations[step])
    lanes = (lane("host", kinds, length),)
    return Timeline(step_ns=length, steps=len(steps), source=BASELINE, lanes=lanes)
