"""Steps cut at their marks: every nanosecond of every step is in exactly one slice."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tdiag.evidence.from_run.records import LateRecord, StepsRecord
from tdiag.probe import wire
from tdiag.probe.wire import ON_CPU, STEP_END

Ints: TypeAlias = npt.NDArray[np.int64]

# Kinds of regions: the codes of their opening marks.
NEXT, FORWARD, BACKWARD = wire.NEXT_BEGIN, wire.FORWARD_BEGIN, wire.BACKWARD_BEGIN
OPTIMIZER, SAVE, GC, COMM = wire.OPTIMIZER_BEGIN, wire.SAVE_BEGIN, wire.GC_BEGIN, wire.COMM_BEGIN
SWITCH = wire.EVAL_BEGIN
WORK = (NEXT, FORWARD, BACKWARD)  # everything inside these belongs to them
NOBODY = -1
UNMEASURED = -1


@dataclass(frozen=True, eq=False)
class StepTable:
    """The steps of one process as columns, and their marks as columns, both in order.

    One row per step: ``number`` (in the run), ``begin`` and ``end`` (ns, clock of all events),
    ``window``. One row per mark: ``code``, ``at`` (ns, the same clock), ``cpu`` (on-CPU ns of the
    training thread since the step began; UNMEASURED except for the first forward of a step without
    a loader's batch), ``arg``, ``step`` (row of its step).
    """

    number: Ints
    begin: Ints
    end: Ints
    window: npt.NDArray[np.str_]
    code: Ints
    at: Ints
    cpu: Ints
    arg: Ints
    step: Ints

    def __len__(self) -> int:
        return len(self.number)

    @cached_property
    def durations(self) -> Ints:
        """Each step's wall time, ns; tdiag's own work between two steps is in none."""
        durations: Ints = np.maximum(self.end - self.begin, 0)
        return durations

    def inside(self, windows: Collection[str]) -> npt.NDArray[np.bool_]:
        """Mask of the steps in one of these windows."""
        return np.isin(self.window, list(windows))


def step_table(records: Sequence[StepsRecord | LateRecord]) -> StepTable:
    """The steps of these records. Marks after the last step end of a record belong to no step."""
    lengths = [len(record.m) // 3 for record in records]
    marks = [record.m[: 3 * n] for record, n in zip(records, lengths, strict=True)]
    log = np.fromiter(chain.from_iterable(marks), np.int64, 3 * sum(lengths)).reshape(-1, 3)
    code, at, arg = log.T
    record = np.repeat(np.arange(len(records)), lengths)
    ends = np.flatnonzero(code == STEP_END)
    of = record[ends]  # the record of each step
    first = np.diff(of, prepend=-1) != 0  # whether it is the first step of its record
    begin = np.where(first, _column(records, "s")[of], np.roll(at[ends], 1))
    nth = np.arange(len(ends)) - np.maximum.accumulate(np.where(first, np.arange(len(ends)), 0))
    cpu = np.full(len(log), UNMEASURED)
    on_cpu = np.flatnonzero(code[:-1] == ON_CPU)
    cpu[on_cpu + 1] = at[on_cpu]  # belongs to the next mark
    step = np.searchsorted(ends, np.arange(len(log)))
    whole = np.append(of, -1)[step] == record
    kept = whole & (code != STEP_END) & (code != ON_CPU)
    return StepTable(
        number=_column(records, "i")[of] + nth,
        begin=begin,
        end=at[ends],
        window=np.array([r.w for r in records], np.str_)[of],
        code=code[kept],
        at=at[kept],
        cpu=cpu[kept],
        arg=arg[kept],
        step=step[kept],
    )


def _column(records: Sequence[StepsRecord | LateRecord], name: str) -> Ints:
    return np.array([getattr(record, name) for record in records], np.int64)


@dataclass(frozen=True)
class Slices:
    """Regions (pairs of marks, in order of their opening) and slices (between any two marks).

    Regions: ``kind`` (code of the opening mark), ``arg`` and ``ret`` (arguments of the opening and
    closing mark; ``ret`` −1 if never closed), ``parent`` (the enclosing region, −1 = none),
    ``covered`` (is inside a work region), ``step`` (index into the given steps), ``wall``. Slices:
    ``ns``, ``cpu_ns`` (−1 if one of its ends has no CPU clock), ``in_step``, ``owner`` (the region
    whose time it is, −1 = none is open), ``following`` (the first region opened after it).
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


def cut(steps: StepTable) -> Slices:
    """Cut these consecutive steps at their marks.

    The slices of a step add up to its duration exactly, whatever its marks look like: marks after
    the step's end are moved to it, pairs without an end end with the step, and an end without a
    beginning is ignored.
    """
    flat = _Marks(steps)
    if broken := flat.unpaired():
        flat = _Marks(_repaired(steps, broken))
    return flat.slices()


def _repaired(steps: StepTable, broken: Sequence[int]) -> StepTable:
    """The same, with all marks of these steps as nested pairs."""
    whole = ~np.isin(steps.step, broken)
    rows, of = [], []
    for number in broken:
        mine = steps.step == number
        wall = steps.at[mine] - steps.begin[number]
        columns = (column.tolist() for column in (steps.code[mine], wall, steps.cpu[mine],
                                                  steps.arg[mine]))  # fmt: skip
        pairs = paired(list(zip(*columns, strict=True)), int(steps.durations[number]))
        rows += [(code, at + int(steps.begin[number]), cpu, arg) for code, at, cpu, arg in pairs]
        of += [number] * len(pairs)
    code, at, cpu, arg = np.array(rows, np.int64).reshape(-1, 4).T
    step = np.append(steps.step[whole], np.array(of, np.int64))
    order = np.argsort(step, kind="stable")
    return replace(
        steps,
        code=np.append(steps.code[whole], code)[order],
        at=np.append(steps.at[whole], at)[order],
        cpu=np.append(steps.cpu[whole], cpu)[order],
        arg=np.append(steps.arg[whole], arg)[order],
        step=step[order],
    )


Mark: TypeAlias = tuple[int, int, int, int]  # code, wall ns in its step, on-CPU ns, argument


def paired(marks: Sequence[Mark], duration: int) -> list[Mark]:
    """The same marks as nested pairs: an end closes the innermost pair of its kind and all pairs
    within, open pairs end with the step, and an end without a beginning is left out."""
    result: list[Mark] = []
    stack: list[int] = []
    for code, wall, cpu, arg in marks:
        if code & 1 == 0:
            stack.append(code)
            result.append((code, wall, cpu, arg))
        elif code - 1 in stack:
            while stack[-1] != code - 1:
                result.append((stack.pop() + 1, wall, cpu, UNMEASURED))
            result.append((stack.pop() + 1, wall, cpu, arg))
    result += [(code + 1, duration, UNMEASURED, UNMEASURED) for code in reversed(stack)]
    return result


class _Marks:
    """The marks of all steps as columns. The opening marks number the regions."""

    def __init__(self, steps: StepTable) -> None:
        self.durations = steps.durations
        self.code, self.cpu, self.arg, self.step = steps.code, steps.cpu, steps.arg, steps.step
        self.counts = np.bincount(steps.step, minlength=len(steps))
        wall = steps.at - steps.begin[steps.step]
        # One clock over all steps that never runs backwards and stays within each step.
        self.begin = np.cumsum(self.durations) - self.durations
        inside = np.clip(wall, 0, self.durations[self.step])
        self.at: Ints = np.maximum.accumulate(self.begin[self.step] + inside)
        self.opens = self.code & 1 == 0
        self.level = self._levels()

    def _levels(self) -> Ints:
        """The depth of each mark's pair, from 1."""
        depth = np.concatenate([[0], np.cumsum(np.where(self.opens, 1, -1))])
        at_begin = depth[np.cumsum(self.counts) - self.counts]
        after: Ints = depth[1:] - at_begin[self.step]
        return after + np.where(self.opens, 0, 1)

    def _couples(self) -> tuple[Ints, Ints]:
        """Opening and closing marks that form pairs, if all marks are paired: on one level of a
        step they alternate."""
        order = np.lexsort((self.level, self.step))
        return order[0::2], order[1::2]

    def unpaired(self) -> list[int]:
        """The steps whose marks are not all nested pairs."""
        wrong = np.zeros(len(self.counts), np.bool_)
        wrong[self.step[self.level < 1]] = True
        balance = np.bincount(self.step, np.where(self.opens, 1, -1), len(self.counts))
        wrong |= balance != 0
        # Pairs are recognised only among steps that are in order so far.
        left = np.flatnonzero(~wrong[self.step])
        order = left[np.lexsort((self.level[left], self.step[left]))]
        first, second = order[0::2], order[1::2]
        wrong[self.step[first[self.code[first] + 1 != self.code[second]]]] = True
        return [int(number) for number in np.flatnonzero(wrong)]

    def slices(self) -> Slices:
        """Regions and slices, if all marks are nested pairs."""
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
        """For each region the last earlier one that is one level higher."""
        parent = np.full(len(begins), NOBODY)
        numbers = np.arange(len(begins))
        for depth in range(2, int(level.max(initial=0)) + 1):
            above = np.maximum.accumulate(np.where(level == depth - 1, numbers, NOBODY))
            parent[level == depth] = above[level == depth]
        return parent

    def _slices(self, open_after: Ints, heir: Ints) -> dict[str, Ints]:
        """The slices between the marks, and between them and the ends of their steps.
        ``open_after``: the innermost open region after each mark."""
        steps = np.arange(len(self.counts))
        last = np.cumsum(self.counts)  # index of each step's end in the marks
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
    """For each region, whether it is inside work, and the region that its time counts for.

    A model called by a dataset or by a recomputing backward counts as data loading or backward.
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
