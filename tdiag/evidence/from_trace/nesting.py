"""Which op called which, from times alone: levels of containment per thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tdiag.evidence.from_trace.intervals import Ints
from tdiag.evidence.from_trace.view import Rows
from tdiag.trace import Trace


@dataclass(frozen=True)
class Nested:
    """``rows`` with, for each, its end clipped to its parent's, its parent (index into
    ``rows``, −1 for an outermost one) and its self time (without direct children), ns."""

    rows: Rows
    start: Ints
    end: Ints
    parent: Ints
    self_ns: Ints

    @property
    def outermost(self) -> Rows:
        """Indices into ``rows``."""
        return np.flatnonzero(self.parent < 0)


def nest(trace: Trace, rows: Rows) -> Nested:
    """Nest the events of each thread. One vectorised pass per level of depth.

    Events that overlap without nesting are taken as children, their end clipped.
    """
    order = np.lexsort((-trace.dur_ns[rows], trace.ts_ns[rows], trace.lane[rows]))
    rows = rows[order]
    lane = trace.lane[rows].astype(np.int64)
    start, end = trace.ts_ns[rows].copy(), trace.end_ns[rows].copy()
    parent = np.full(len(rows), -1, np.int64)
    # One time axis on which threads follow one another, so that one pass serves all of them.
    origin = int(start.min()) if len(rows) else 0
    shift = lane * (int(end.max()) - origin + 1) if len(rows) else lane
    start += shift - origin
    end += shift - origin
    level = np.arange(len(rows))
    above = level[:0]
    while len(level):
        if len(above):
            parent[level] = above[np.searchsorted(start[above], start[level], side="right") - 1]
            end[level] = np.minimum(end[level], end[parent[level]])
        reach = np.maximum.accumulate(end[level])
        outer = np.r_[True, start[level][1:] >= reach[:-1]]
        above, level = level[outer], level[~outer]
    children = np.zeros(len(rows), np.int64)
    inner = parent >= 0
    np.add.at(children, parent[inner], (end - start)[inner])
    self_ns = np.maximum(end - start - children, 0)
    return Nested(rows, start - shift + origin, end - shift + origin, parent, self_ns)
