"""Where the traced step's time went, seen from the device."""

from __future__ import annotations

import numpy as np

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.from_trace.causes import Idle
from tdiag.evidence.from_trace.host_states import ALLOCATION
from tdiag.evidence.from_trace.intervals import Spans, clip, gaps, merged, minus, total
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.view import COMM, COMPUTE, D2H, H2D, View, queue_of

KIND_NAMES = {COMPUTE: "compute", COMM: "comm", H2D: "h2d", D2H: "d2h"}  # in order of precedence


def device_time(view: View, window: Window, idle: Idle, states: dict[str, Spans]) -> DeviceTime:
    """The budget of a window in which something ran on a device."""
    components = _busy(view, window)
    busy = merged(*components.values())
    totals = {name: total(spans) for name, spans in components.items()}
    if window.sampled:  # most host events are missing: what the host did cannot be told
        totals["unattributed"] = sum(idle.by_cause.values())
    else:
        totals |= idle.by_cause
    rows = window.began(view, view.kernels)
    allocations = window.began(view, view.matching(view.runtime, ALLOCATION))
    starved = _launch_starved(view, gaps(busy, window.begin, window.end))
    inside = {name: clip(spans, window.begin, window.end) for name, spans in states.items()}
    return DeviceTime(
        step_ns=(window.end - window.begin) / window.count,
        components_ns={name: ns / window.count for name, ns in totals.items() if ns},
        busy_frac=total(busy) / (window.end - window.begin),
        kernels_per_step=len(rows) / window.count,
        mean_kernel_ns=float(view.trace.dur_ns[rows].mean()) if len(rows) else 0.0,
        launch_starved_ns=starved / window.count,
        streams=len(np.unique(queue_of(view.trace, view.work))),
        host_ns={name: total(spans) / window.count for name, spans in inside.items()},
        queue_depth=_queue_depth(view, window),
        allocations_per_step=len(allocations) / window.count if len(view.runtime) else None,
    )


def _queue_depth(view: View, window: Window) -> float | None:
    """How much work was under way or waiting when more was issued, the median."""
    known = view.launch >= 0
    issued = view.trace.ts_ns[view.launch[known]]
    ended = np.sort(view.trace.ends(view.work[known]))
    now = issued[(issued >= window.begin) & (issued < window.end)]
    if not len(now):
        return None
    before = np.searchsorted(np.sort(issued), now, side="left")
    return max(0.0, float(np.median(before - np.searchsorted(ended, now, side="right"))))


def busy_spans(view: View, window: Window) -> Spans:
    """When anything ran on the device."""
    return clip(view.spans(view.work), window.begin, window.end)


def _busy(view: View, window: Window) -> dict[str, Spans]:
    """Device-busy instants by the kind that has precedence."""
    found: dict[str, Spans] = {}
    for kind, name in KIND_NAMES.items():
        spans = clip(view.spans(view.of_kind(kind)), window.begin, window.end)
        for other in found.values():
            spans = minus(spans, other)
        found[name] = spans
    return found


def _launch_starved(view: View, idle: Spans) -> int:
    """Idle before work whose launch call came only after the device had become idle."""
    if not len(idle):
        return 0
    known = view.launch >= 0
    rows, calls = view.work[known], view.launch[known]
    start, issued = view.trace.ts_ns[rows], view.trace.ts_ns[calls]
    order = np.argsort(start, kind="stable")
    start, issued = start[order], issued[order]
    first = np.searchsorted(start, idle[:, 1])  # the work that ends each gap
    hit = first < len(start)
    hit[hit] &= start[first[hit]] == idle[hit, 1]
    late = hit.copy()
    late[hit] = issued[first[hit]] >= idle[hit, 0]
    return int((idle[late, 1] - idle[late, 0]).sum())
