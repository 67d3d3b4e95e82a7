"""Cuts steps at their marks: every nanosecond of every step in exactly one slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tdiag.evidence.from_run.records import StepRecord

Ints: TypeAlias = npt.NDArray[np.int64]

NEXT, FORWARD, BACKWARD, OPTIMIZER, SAVE, GC = 0, 2, 4, 6, 8, 10
WORK = frozenset((NEXT, FORWARD, BACKWARD))  # what runs inside these belongs to them
NOBODY = -1
UNMEASURED = -1


@dataclass(frozen=True)
class Timeline:
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


class _Cutter:
    """Builds the columns of a Timeline, step by step."""

    def __init__(self) -> None:
        self.regions: list[list[int]] = []  # kind, arg, ret, parent, covered, step, begin/wall
        self.heirs: list[int] = []  # region → the region that its time counts for
        self.slices: list[tuple[int, int, int, int, int]] = []

    def step(self, number: int, marks: Sequence[int], duration: int) -> None:
        stack: list[int] = []
        at = cpu_at = 0  # a step begins with both clocks at zero
        for code, wall, cpu, arg in zip(
            marks[0::4], marks[1::4], marks[2::4], marks[3::4], strict=False
        ):
            wall = min(max(wall, at), duration)  # a clock never runs backwards, a step never over
            measured = cpu_at >= 0 and cpu >= 0
            self._slice(wall - at, max(0, cpu - cpu_at) if measured else UNMEASURED, number, stack)
            at, cpu_at = wall, cpu
            if code & 1:
                self._close(code - 1, arg, wall, stack)
            else:
                self._open(code, arg, wall, number, stack)
        self._slice(duration - at, UNMEASURED, number, stack)
        for region in stack:  # an open pair ends with its step
            self.regions[region][6] = duration - self.regions[region][6]

    def _slice(self, ns: int, cpu: int, number: int, stack: list[int]) -> None:
        owner = self.heirs[stack[-1]] if stack else NOBODY
        self.slices.append((ns, cpu, number, owner, len(self.regions)))

    def _open(self, code: int, arg: int, wall: int, number: int, stack: list[int]) -> None:
        parent = stack[-1] if stack else NOBODY
        above = self.regions[parent] if stack else None
        covered = above is not None and (above[0] in WORK or bool(above[4]))
        # A model called by a dataset or by a recomputing backward is part of that.
        inner = code == FORWARD and above is not None and above[0] in WORK
        self.heirs.append(self.heirs[parent] if inner else len(self.regions))
        stack.append(len(self.regions))
        self.regions.append([code, arg, -1, parent, covered, number, wall])

    def _close(self, code: int, arg: int, wall: int, stack: list[int]) -> None:
        """Close the innermost pair of this kind and all within; a stray end mark is ignored."""
        for depth in range(len(stack) - 1, -1, -1):
            if self.regions[stack[depth]][0] == code:
                for region in stack[depth:]:
                    self.regions[region][6] = wall - self.regions[region][6]
                self.regions[stack[depth]][2] = arg
                del stack[depth:]
                return


def cut(steps: Sequence[StepRecord], durations: Sequence[int]) -> Timeline:
    """Cut these steps, which follow one another, at their marks.

    The slices of a step add up to its duration exactly, whatever its marks look like: marks
    beyond the step's end are moved to it, pairs that never end do so with the step.
    """
    cutter = _Cutter()
    for number, (step, duration) in enumerate(zip(steps, durations, strict=True)):
        cutter.step(number, step.m, duration)
    regions = np.array(cutter.regions, np.int64).reshape(-1, 7).T
    slices = np.array(cutter.slices, np.int64).reshape(-1, 5).T
    kind, arg, ret, parent, covered, step_of, wall = regions
    ns, cpu_ns, in_step, owner, following = slices
    return Timeline(
        kind=kind, arg=arg, ret=ret, parent=parent, covered=covered.astype(np.bool_), step=step_of,
        wall=wall, ns=ns, cpu_ns=cpu_ns, in_step=in_step, owner=owner, following=following,
        steps=len(steps),
    )  # fmt: skip


def durations_of(steps: Sequence[StepRecord]) -> list[int]:
    """Each step's wall time, ns; what tdiag itself did between two steps is in none."""
    return [max(0, step.t - step.s) for step in steps]
