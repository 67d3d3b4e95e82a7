"""Which event called which, from times alone: levels of containment per thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tdiag.evidence.from_trace.intervals import Ints
from tdiag.evidence.from_trace.sorted_events import Rows
from tdiag.trace import Trace
from tdiag.trace.columns import Integers


@dataclass(frozen=True)
class Axis:
    """One time axis with the threads placed one after another, so that one pass covers them all."""

    origin: int
    width: int

    def key(self, lane: Integers, moment: Ints) -> Ints:
        inside = np.clip(moment - self.origin, 0, self.width - 1)
        key: Ints = lane.astype(np.int64) * self.width + inside
        return key


@dataclass(frozen=True)
class Nested:
    """``rows``, each with its end clipped to its parent's, its parent (index into ``rows``, −1 for
    an outermost event) and its self time (without direct children), ns."""

    rows: Rows
    lane: npt.NDArray[np.int32]
    start: Ints
    end: Ints
    parent: npt.NDArray[np.int32]
    self_ns: Ints
    axis: Axis

    @property
    def outermost(self) -> Rows:
        """Indices into ``rows``."""
        return np.flatnonzero(self.parent < 0)

    def around(self, lane: Ints, moment: Ints) -> Rows:
        """The innermost of these events running on ``lane`` at ``moment``: index into ``rows``, −1
        for none."""
        if not len(self.rows):
            return np.full(len(moment), -1, np.int64)
        keys = self.axis.key(self.lane, self.start)
        at = np.searchsorted(keys, self.axis.key(lane, moment), side="right") - 1
        at[(at >= 0) & (self.lane[at] != lane)] = -1
        while True:
            over = (at >= 0) & ((self.end[at] <= moment) | (self.start[at] > moment))
            if not over.any():
                return at
            at[over] = self.parent[at[over]]


def outermost(trace: Trace, rows: Rows) -> Rows:
    """Those of ``rows`` that run inside no other event of their thread, by thread and start.
    Cheaper than :func:`nest`, which finds these and more."""
    rows, axis, begin = _ordered(trace, rows)
    if not len(rows):
        return rows
    until = axis.key(trace.lane[rows], trace.ends(rows))
    return rows[np.r_[True, begin[1:] >= np.maximum.accumulate(until)[:-1]]]


def _ordered(trace: Trace, rows: Rows) -> tuple[Rows, Axis, Ints]:
    """``rows`` by thread and start (equal starts: longest first), the axis, and the start of each
    on it."""
    axis = _axis(trace, rows)
    begin = axis.key(trace.lane[rows], trace.ts_ns[rows])
    order = np.argsort(begin, kind="stable")  # fast: a thread's events are mostly in order already
    rows, begin = rows[order], begin[order]
    same = np.flatnonzero(begin[1:] == begin[:-1])
    at_once = np.union1d(same, same + 1)
    tied = rows[at_once]
    rows[at_once] = tied[np.lexsort((-trace.dur_ns[tied], begin[at_once]))]
    return rows, axis, begin


def _axis(trace: Trace, rows: Rows) -> Axis:
    origin = int(trace.ts_ns[rows].min()) if len(rows) else 0
    return Axis(origin, int(trace.ends(rows).max()) - origin + 1 if len(rows) else 1)


def nest(trace: Trace, rows: Rows) -> Nested:
    """Nest the events of each thread. One vectorised pass per level of depth.

    Events that overlap without nesting count as children, with their end clipped.
    """
    rows, axis, begin = _ordered(trace, rows)
    until = axis.key(trace.lane[rows], trace.ends(rows))
    parent = np.full(len(rows), -1, np.int32)
    level = np.arange(len(rows), dtype=np.int32)
    above = level[:0]
    while len(level):
        if len(above):
            parent[level] = above[np.searchsorted(begin[above], begin[level], side="right") - 1]
            until[level] = np.minimum(until[level], until[parent[level]])
        outer = np.r_[True, begin[level][1:] >= np.maximum.accumulate(until[level])[:-1]]
        above, level = level[outer], level[~outer]
    until -= begin  # from here on: durations
    del begin
    inner = parent >= 0
    own = until - np.bincount(parent[inner], until[inner], len(rows)).astype(np.int64)
    start = trace.ts_ns[rows]
    return Nested(rows, trace.lane[rows], start, start + until, parent, np.maximum(own, 0), axis)
