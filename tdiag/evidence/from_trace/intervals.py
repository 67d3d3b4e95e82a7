"""Sets of instants as sorted, disjoint half-open intervals: an int64 array of shape (n, 2), ns.

All statements about device time use these functions, so that overlap is never counted twice.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Spans = npt.NDArray[np.int64]  # (n, 2): start, end; sorted, disjoint

NOTHING: Spans = np.empty((0, 2), np.int64)


def union(start: Ints, end: Ints) -> Spans:
    """The instants covered by any of the intervals ``[start, end)``, in any order."""
    kept = end > start
    start, end = start[kept], end[kept]
    if not len(start):
        return NOTHING
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.r_[True, start[1:] > end[:-1]]
    last = np.r_[first[1:], True]
    return np.stack([start[first], end[last]], axis=1)


def merged(*sets: Spans) -> Spans:
    """Union of several sets."""
    every = np.concatenate(sets) if sets else NOTHING
    return union(every[:, 0], every[:, 1])


def gaps(spans: Spans, begin: int, end: int) -> Spans:
    """The part of ``[begin, end)`` that the set does not cover."""
    inside = clip(spans, begin, end)
    start = np.r_[begin, inside[:, 1]]
    stop = np.r_[inside[:, 0], end]
    kept = stop > start
    return np.stack([start[kept], stop[kept]], axis=1)


def clip(spans: Spans, begin: int, end: int) -> Spans:
    """The part of the set inside ``[begin, end)``."""
    bounded = np.clip(spans, begin, end)
    return bounded[bounded[:, 1] > bounded[:, 0]]


def minus(spans: Spans, removed: Spans) -> Spans:
    """Instants in ``spans`` that are not in ``removed``."""
    if not len(spans) or not len(removed):
        return spans
    begin, end = int(spans[0, 0]), int(spans[-1, 1])
    return both(spans, gaps(removed, begin, end))


def both(a: Spans, b: Spans) -> Spans:
    """Instants in both sets."""
    if not len(a) or not len(b):
        return NOTHING
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")  # first of b ending after a begins
    count = np.maximum(np.searchsorted(b[:, 0], a[:, 1], side="left") - first, 0)
    mine = np.repeat(np.arange(len(a)), count)
    theirs = np.arange(len(mine)) - np.repeat(np.cumsum(count) - count, count) + first[mine]
    start = np.maximum(a[mine, 0], b[theirs, 0])
    end = np.minimum(a[mine, 1], b[theirs, 1])
    return np.stack([start, end], axis=1)


def total(spans: Spans) -> int:
    """Total length of the set, ns."""
    return int((spans[:, 1] - spans[:, 0]).sum())


def covered(spans: Spans, start: Ints, end: Ints) -> Ints:
    """How much of each query interval ``[start, end)`` the set covers, ns."""
    if not len(spans):
        return np.zeros(len(start), np.int64)
    return _covered_before(spans, end) - _covered_before(spans, start)


def _covered_before(spans: Spans, instants: Ints) -> Ints:
    before = np.r_[0, np.cumsum(spans[:, 1] - spans[:, 0])]
    begun = np.searchsorted(spans[:, 0], instants, side="right")
    last = np.maximum(begun - 1, 0)
    inside = np.minimum(instants, spans[last, 1]) - spans[last, 0]
    return np.where(begun > 0, before[last] + inside, 0)
