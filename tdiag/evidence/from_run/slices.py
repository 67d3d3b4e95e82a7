"""Steps, and cut at their marks: every nanosecond of every step in exactly one slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tdiag.evidence.from_run.records import StepsRecord
from tdiag.probe import wire
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


Ints: TypeAlias = npt.NDArray[np.int64]

# Kinds of regions: the codes of the marks that open them.
NEXT, FORWARD, BACKWARD = wire.NEXT_BEGIN, wire.FORWARD_BEGIN, wire.BACKWARD_BEGIN
OPTIMIZER, SAVE, GC, COMM = wire.OPTIMIZER_BEGIN, wire.SAVE_BEGIN, wire.GC_BEGIN, wire.COMM_BEGIN
WORK = (NEXT, FORWARD, BACKWARD)  # what runs inside these belongs to them
NOBODY = -1
UNMEASURED = -1


@dataclass(frozen=True)
class Slices:
    """Regions (pairs of marks, in order of their opening) and slices (between any two marks).

    Regions: ``kind`` (an opening mark's code), ``arg`` and ``ret`` (arguments of the opening and
    closing mark; ``ret`` −1 if never closed), ``parent`` (region it lies in, −1 = none),
    ``covered`` (lies inside a work region), ``step`` (index into the steps given), ``wall``.
    Slices: ``ns``, ``cpu_ns`` (−1 where one of its ends has no CPU clock), ``in_step``,
    ``owner`` (region whose time it is, −1 = none is open), ``following`` (the first region
    opened after it).
    """

    kind: Ints
    arg: Ints
    ret: Ints
    parent: Ints
    covered: npt.NDArray[np.bool_]
    step: Ints
    wall: Ints
    ns: Ints
    cpu_ns: Ints
    in_step: Ints
    owner: Ints
    following: Ints
    steps: int


def cut(steps: Sequence[Step], durations: Sequence[int]) -> Slices:
    """Cut these steps, which follow one another, at their marks.

    The slices of a step add up to its duration exactly, whatever its marks look like: marks
    beyond the step's end are moved to it, pairs that never end do so with the step, an end
    without a beginning is ignored.
    """
    marks = [step.m for step in steps]
    flat = _Marks(marks, durations)
    if broken := flat.unpaired():
        for number in broken:
            marks[number] = paired(marks[number], durations[number])
        flat = _Marks(marks, durations)
    return flat.timeline()


def paired(marks: Sequence[int], duration: int) -> list[int]:
    """The same marks, as pairs that nest: an end closes the innermost pair of its kind and all
    within, what is still open ends with the step, an end without a beginning is left out."""
    result: list[int] = []
    stack: list[int] = []
    for code, wall, cpu, arg in zip(*(marks[i::4] for i in range(4)), strict=False):
        if code & 1 == 0:
            stack.append(code)
            result += (code, wall, cpu, arg)
        elif code - 1 in stack:
            while stack[-1] != code - 1:
                result += (stack.pop() + 1, wall, cpu, UNMEASURED)
            result += (stack.pop() + 1, wall, cpu, arg)
    for code in reversed(stack):
        result += (code + 1, duration, UNMEASURED, UNMEASURED)
    return result


class _Marks:
    """The marks of all steps as columns. The opening ones number the regions."""

    def __init__(self, marks: Sequence[Sequence[int]], durations: Sequence[int]) -> None:
        self.durations = np.array(durations, np.int64)
        self.counts = np.array([len(m) // 4 for m in marks], np.int64)
        values = chain.from_iterable(m[: len(m) // 4 * 4] for m in marks)
        rows = np.fromiter(values, np.int64, int(self.counts.sum()) * 4).reshape(-1, 4)
        self.code, wall, self.cpu, self.arg = rows.T
        self.step = np.repeat(np.arange(len(marks)), self.counts)
        # One clock over all steps, which never runs backwards and stays within each step.
        self.begin = np.cumsum(self.durations) - self.durations
        inside = np.clip(wall, 0, self.durations[self.step])
        self.at: Ints = np.maximum.accumulate(self.begin[self.step] + inside)
        self.opens = self.code & 1 == 0
        self.level = self._levels()

    def _levels(self) -> Ints:
        """How deep the pair lies that a mark belongs to, from 1."""
        depth = np.concatenate([[0], np.cumsum(np.where(self.opens, 1, -1))])
        at_begin = depth[np.cumsum(self.counts) - self.counts]
        after: Ints = depth[1:] - at_begin[self.step]
        return after + np.where(self.opens, 0, 1)

    def _couples(self) -> tuple[Ints, Ints]:
        """Opening and closing marks that belong together, if all marks do: on one level of a
        step they take turns."""
        order = np.lexsort((self.level, self.step))
        return order[0::2], order[1::2]

    def unpaired(self) -> list[int]:
        """The steps whose marks are not all pairs that nest."""
        wrong = np.zeros(len(self.counts), np.bool_)
        wrong[self.step[self.level < 1]] = True
        balance = np.bincount(self.step, np.where(self.opens, 1, -1), len(self.counts))
        wrong |= balance != 0
        # Couples are told only among steps that are in order so far.
        left = np.flatnonzero(~wrong[self.step])
        order = left[np.lexsort((self.level[left], self.step[left]))]
        first, second = order[0::2], order[1::2]
        wrong[self.step[first[self.code[first] + 1 != self.code[second]]]] = True
        return [int(number) for number in np.flatnonzero(wrong)]

    def timeline(self) -> Slices:
        """Regions and slices; all marks are pairs that nest."""
        opening, closing = self._couples()
        region = np.cumsum(self.opens) - 1  # of opening marks
        region[closing] = region[opening]
        ends = np.empty(len(opening), np.int64)
        ends[region[closing]] = closing
        begins = np.flatnonzero(self.opens)
        kind, level = self.code[begins], self.level[begins]
        parent = self._parents(begins, level)
        covered, heir = _inherit(kind, parent, level)
        return Slices(
            kind=kind,
            arg=self.arg[begins],
            ret=self.arg[ends],
            parent=parent,
            covered=covered,
            step=self.step[begins],
            wall=self.at[ends] - self.at[begins],
            **self._slices(np.where(self.opens, region, parent[region]), heir),
            steps=len(self.counts),
        )

    def _parents(self, begins: Ints, level: Ints) -> Ints:
        """For each region the last one before it that lies one level higher."""
        parent = np.full(len(begins), NOBODY)
        numbers = np.arange(len(begins))
        for depth in range(2, int(level.max(initial=0)) + 1):
            above = np.maximum.accumulate(np.where(level == depth - 1, numbers, NOBODY))
            parent[level == depth] = above[level == depth]
        return parent

    def _slices(self, open_after: Ints, heir: Ints) -> dict[str, Ints]:
        """Between the marks, and between them and the ends of their steps. ``open_after``: the
        innermost region that is open after each mark."""
        steps = np.arange(len(self.counts))
        last = np.cumsum(self.counts)  # where in the marks each step ends
        first = last - self.counts
        regions = np.concatenate([[0], np.cumsum(self.opens)])
        end = self.begin + self.durations
        owner = np.concatenate([heir, [NOBODY]])[np.insert(open_after, first, NOBODY)]
        cpu_before = np.insert(self.cpu, first, 0)  # a step begins with both clocks at zero
        cpu_after = np.insert(self.cpu, last, UNMEASURED)
        known = (cpu_before >= 0) & (cpu_after >= 0)
        return {
            "ns": np.insert(self.at, last, end) - np.insert(self.at, first, self.begin),
            "cpu_ns": np.where(known, np.maximum(cpu_after - cpu_before, 0), UNMEASURED),
            "in_step": np.repeat(steps, self.counts + 1),
            "owner": owner,
            "following": np.insert(regions[:-1], last, regions[last]),
        }


def _inherit(kind: Ints, parent: Ints, level: Ints) -> tuple[npt.NDArray[np.bool_], Ints]:
    """For each region, whether it lies inside work, and the region that its time counts for.

    A model called by a dataset or by a recomputing backward is part of that.
    """
    covered = np.zeros(len(kind), np.bool_)
    heir = np.arange(len(kind))
    works = np.isin(kind, WORK)
    for depth in range(2, int(level.max(initial=0)) + 1):
        here = np.flatnonzero(level == depth)
        above = parent[here]
        covered[here] = works[above] | covered[above]
        inner = works[above] & (kind[here] == FORWARD)
        heir[here[inner]] = heir[above[inner]]
    return covered, heir


def durations_of(steps: Sequence[Step]) -> list[int]:
    """Each step's wall time, ns; what tdiag itself did between two steps is in none."""
    return [max(0, step.t - step.s) for step in steps]
