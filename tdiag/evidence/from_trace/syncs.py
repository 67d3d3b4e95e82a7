"""Synchronisations, and the device idle time that follows each."""

from __future__ import annotations

import numpy as np

from tdiag.evidence.device import Sync, Syncs
from tdiag.evidence.from_trace.host_states import ITEM, blocking_calls
from tdiag.evidence.from_trace.intervals import Ints, Spans, covered, gaps
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.view import View


def syncs(view: View, window: Window, busy: Spans) -> Syncs:
    """By name of the runtime call, and ``aten::item`` for the op that asked for a value."""
    trace = view.trace
    calls = window.began(view, blocking_calls(view))
    calls = calls[np.argsort(trace.end_ns[calls], kind="stable")]
    after = idle_after(trace.ts_ns[calls], trace.end_ns[calls], busy, window)
    found = [
        _sync(trace.names[name], trace.dur_ns[calls][mine], after[mine], window.count)
        for name in np.unique(trace.name[calls])
        for mine in [trace.name[calls] == name]
    ]
    items = window.began(view, view.matching(view.ops, ITEM))
    items = items[np.argsort(trace.end_ns[items], kind="stable")]
    start, end = trace.ts_ns[items], trace.end_ns[items]
    waited = covered(view.spans(calls), start, end) > 0  # else the value was on the host already
    if waited.any():
        start, end = start[waited], end[waited]
        after = idle_after(start, end, busy, window)
        found.append(_sync("aten::item", end - start, after, window.count))
    found.sort(key=lambda sync: -(sync.idle_after_ns + sync.host_ns))
    return Syncs(syncs=tuple(found))


def idle_after(start: Ints, end: Ints, busy: Spans, window: Window) -> Ints:
    """Device idle from the return of each call (sorted by end) to the next work on the device,
    or to the next call if that comes first: no gap is counted for two."""
    if not len(end):
        return np.zeros(0, np.int64)
    idle = gaps(busy, window.begin, window.end)
    begins = np.r_[busy[:, 0], window.end]
    resumed = begins[np.searchsorted(begins[:-1], end)]
    following = np.r_[start[1:], window.end]
    until = np.maximum(np.minimum(resumed, following), end)
    return covered(idle, end, until)


def _sync(name: str, host: Ints, after: Ints, steps: int) -> Sync:
    return Sync(
        name=name,
        count=len(host) / steps,
        host_ns=float(host.sum()) / steps,
        idle_after_ns=float(after.sum()) / steps,
        at=None,
    )
