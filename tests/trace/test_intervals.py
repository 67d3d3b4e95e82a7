"""Interval sets agree with counting every nanosecond by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tdiag.evidence.from_trace.intervals import (
    Spans,
    both,
    clip,
    covered,
    gaps,
    merged,
    minus,
    total,
    union,
)

WIDTH = 60


def some(seed: int) -> tuple[Spans, set[int]]:
    random = np.random.default_rng(seed)
    start = random.integers(0, WIDTH, 8)
    end = start + random.integers(0, 9, 8)  # zero-length ones among them
    return union(start, end), {t for a, b in zip(start, end, strict=True) for t in range(a, b)}


def instants(spans: Spans) -> set[int]:
    found = [t for a, b in spans.tolist() for t in range(a, b)]
    assert len(found) == len(set(found)), "not disjoint"
    assert found == sorted(found), "not sorted"
    return set(found)


@pytest.mark.parametrize("seed", range(40))
def test_set_algebra(seed: int) -> None:
    a, a_set = some(seed)
    b, b_set = some(seed + 1000)
    assert instants(a) == a_set
    assert instants(merged(a, b)) == a_set | b_set
    assert instants(both(a, b)) == a_set & b_set
    assert instants(minus(a, b)) == a_set - b_set
    assert instants(clip(a, 10, 30)) == a_set & set(range(10, 30))
    assert instants(gaps(a, 10, 30)) == set(range(10, 30)) - a_set
    assert total(a) == len(a_set)
    start, end = np.arange(0, WIDTH, 7), np.arange(0, WIDTH, 7) + 11
    expected = [len(a_set & set(range(x, y))) for x, y in zip(start, end, strict=True)]
    assert covered(a, start, end).tolist() == expected


def test_nothing_stays_nothing() -> None:
    nothing = union(np.array([5]), np.array([5]))
    some_spans = union(np.array([1]), np.array([3]))
    assert total(nothing) == 0
    assert total(both(nothing, some_spans)) == 0
    assert minus(some_spans, nothing).tolist() == [[1, 3]]
    assert gaps(nothing, 0, 4).tolist() == [[0, 4]]
    assert covered(nothing, np.array([0]), np.array([9])).tolist() == [0]
