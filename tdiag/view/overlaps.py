"""Spans of one thread that overlap without nesting, which no viewer can draw.

Kineto's Python tracer and its annotations read the clock one after the other, so if both begin or
end together they overlap by a few microseconds, sometimes by one nanosecond.
"""

from __future__ import annotations

import numpy as np

from tdiag.evidence.from_trace.sorted_events import DEVICE_CATEGORIES
from tdiag.trace import Trace


def clipped(trace: Trace) -> dict[int, int]:
    """New durations (ns) by row, for the few host spans that must be shortened. Kernels are not
    changed, because those of one stream may really overlap.

    Of two spans that overlap, one end is moved to where they meet: the earlier one's end to the
    later's begin, or the later one's end to the earlier's end, whichever removes less.
    """
    device = [n for n, c in enumerate(trace.categories) if c.lower() in DEVICE_CATEGORIES]
    rows = np.flatnonzero(~np.isin(trace.category, device))
    order = rows[np.lexsort((-trace.dur_ns[rows], trace.ts_ns[rows], trace.lane[rows]))]
    begins, ends = trace.ts_ns[order].tolist(), trace.ends(order).tolist()
    changed: dict[int, int] = {}
    lane, opened = -1, [0]
    for i, its_lane in enumerate(trace.lane[order].tolist()):
        if its_lane != lane:
            lane, opened = its_lane, []
        while opened and ends[opened[-1]] <= begins[i]:
            opened.pop()
        while opened and ends[opened[-1]] < ends[i]:
            earlier = opened[-1]
            if ends[earlier] - begins[i] < ends[i] - ends[earlier]:
                ends[earlier] = begins[i]
                changed[earlier] = ends[earlier] - begins[earlier]
                opened.pop()
            else:
                ends[i] = ends[earlier]
                changed[i] = ends[i] - begins[i]
        opened.append(i)
    return {int(order[i]): ns for i, ns in changed.items()}
