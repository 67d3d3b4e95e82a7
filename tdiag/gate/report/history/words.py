"""What every format of a history says in the same words."""

from __future__ import annotations

import statistics

from tdiag.gate.history import Series
from tdiag.gate.shifts import FEWEST, Shift
from tdiag.units import duration, plural

LEAST_SPAN = 0.1  # of the median: a scale of less would make much of noise
NOTHING = "No check in this file has a step time."


def bounds(series: Series) -> tuple[float, float]:
    """Of the scale its step times are drawn on, ns."""
    times = [record.step_ns or 0.0 for record in series.records]
    middle = statistics.median(times)
    half = middle * LEAST_SPAN / 2
    return min(*times, middle - half), max(*times, middle + half)


def shift_line(shift: Shift, series: Series) -> str:
    """``+8.1% from 1a2b3c4d5e on, 2.41 ms → 2.60 ms``."""
    before, now = series.records[shift.index - 1], series.records[shift.index]
    line = (
        f"{shift.change:+.1%} from {now.label} on, {duration(shift.before_ns)} →"
        f" {duration(shift.now_ns)}"
    )
    if before.baseline_ns != now.baseline_ns:
        line += "; the baseline was written again here, which may be all of it"
    return line


def summary(series: Series, found: int) -> str:
    """How many checks, and how many lasting changes among them."""
    checks = len(series.records)
    if checks < FEWEST:
        return f"{plural(checks, 'check')}; lasting changes are looked for in {FEWEST} or more"
    return f"{plural(checks, 'check')}, {plural(found, 'lasting change')}"
