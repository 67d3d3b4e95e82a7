"""Spans that cross are cut where it takes least away; all others stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tdiag.view.overlaps import clipped
from tests.trace.making import kernel, op, trace_of


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([op("outer", 0, 100), op("inner", 10, 20), op("next", 30, 70)], {}),
        # A tracer's frame ends just after the annotation that it opens has begun.
        ([op("enter", 0, 50), op("annotation", 40, 1000)], {0: 40_000}),
        # The annotation ends within the frame that closes it; and one by a nanosecond.
        ([op("annotation", 0, 1000), op("exit", 990, 15)], {1: 10_000}),
        ([op("module", 0, 1000), op("main", 1, 999.001)], {1: 999_000}),
        ([op("mine", 0, 50), op("another thread's", 40, 1000, tid=7)], {}),
        ([kernel("a", 0, 50), kernel("b", 40, 1000)], {}),
        # Cut short, the first no longer holds what follows; the one around both still does.
        ([op("all", 0, 500), op("enter", 0, 50), op("x", 40, 200), op("y", 45, 5)], {1: 40_000}),
    ],
)
def test_the_lesser_loss(
    events: list[dict[str, Any]], expected: dict[int, int], tmp_path: Path
) -> None:
    assert clipped(trace_of(tmp_path, events)) == expected
