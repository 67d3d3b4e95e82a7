"""From the log of a row of steps (docs/run-directory.md) to one step each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tdiag.evidence.from_run.records import StepsRecord
from tdiag.probe.wire import ON_CPU, STEP_END

UNMEASURED = -1


@dataclass(frozen=True)
class Step:
    """Step ``i`` of window ``w``, from ``s`` to ``t`` (ns, clock of all events).

    ``m``: its marks, flat fours: code, wall ns since ``s``, on-CPU ns of the training thread
    since ``s`` (UNMEASURED but for the first forward of a step without a loader's batch),
    argument.
    """

    i: int
    s: int
    t: int
    w: str
    m: list[int]


def steps_of(record: StepsRecord) -> list[Step]:
    """The steps of a record, in order. What follows the last mark that ends one is of no step."""
    log = np.array(record.m[: len(record.m) // 3 * 3], np.int64).reshape(-1, 3)
    ends = np.flatnonzero(log[:, 0] == STEP_END)
    marks = np.column_stack([log[:, :2], np.full(len(log), UNMEASURED), log[:, 2]])
    on_cpu = np.flatnonzero(log[:-1, 0] == ON_CPU)
    marks[on_cpu + 1, 2] = log[on_cpu, 1]  # of the mark that follows
    steps, began = [], record.s
    for number, (first, last) in enumerate(pairwise([0, *(ends + 1)])):
        own = marks[first : last - 1]
        own = own[own[:, 0] != ON_CPU]
        own[:, 1] -= began
        ended = int(log[last - 1, 1])
        steps.append(Step(record.i + number, began, ended, record.w, own.ravel().tolist()))
        began = ended
    return steps
