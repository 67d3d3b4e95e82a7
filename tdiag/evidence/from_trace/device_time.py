"""Where the traced step's time went, seen from the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.from_trace.host_ops import Phase
from tdiag.evidence.from_trace.host_states import blocking_calls, host_states, split
from tdiag.evidence.from_trace.intervals import Ints, Spans, clip, gaps, merged, minus, total
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.view import COMM, COMPUTE, D2H, H2D, View

KIND_NAMES = {COMPUTE: "compute", COMM: "comm", H2D: "h2d", D2H: "d2h"}  # in order of precedence
# Idle in these states is what it is, whether or not a synchronisation came before.
OWN_CAUSE = frozenset({"data_wait", "alloc", "sync"})


def device_time(view: View, window: Window, phases: Sequence[Phase]) -> DeviceTime | None:
    """None if nothing ran on a device within the window."""
    components = _busy(view, window)
    busy = merged(*components.values())
    if not len(busy):
        return None
    idle = gaps(busy, window.begin, window.end)
    states = {
        name: clip(spans, window.begin, window.end)
        for name, spans in host_states(view, phases).items()
    }
    totals = {name: total(spans) for name, spans in components.items()}
    totals |= _idle(view, split(idle, states), window)
    rows = window.began(view, view.kernels)
    return DeviceTime(
        step_ns=(window.end - window.begin) / window.count,
        components_ns={name: ns / window.count for name, ns in totals.items() if ns},
        busy_frac=total(busy) / (window.end - window.begin),
        kernels_per_step=len(rows) / window.count,
        mean_kernel_ns=float(view.trace.dur_ns[rows].mean()) if len(rows) else 0.0,
        launch_starved_ns=_launch_starved(view, idle) / window.count,
        streams=len(
            set(zip(view.trace.device[view.work], view.trace.stream[view.work], strict=True))
        ),
        host_ns={name: total(spans) / window.count for name, spans in states.items()},
    )


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


def _idle(view: View, parts: dict[str, Spans], window: Window) -> dict[str, int]:
    """Idle ns by cause; adds up to the idle time exactly.

    A synchronisation makes idle what follows it, too: the host, had it not waited, would be
    ahead by the time it waited. That lead is spent by each later gap of the device, until it is
    used up (a replay of the device queue with the waits removed, in one pass). So a wait for a
    busy device that never runs dry costs nothing.
    """
    totals = {name: total(spans) for name, spans in parts.items()}
    claimable = {name: spans for name, spans in parts.items() if name not in OWN_CAUSE}
    calls = blocking_calls(view)
    ended = view.trace.end_ns[calls]
    calls = calls[(ended > window.begin) & (ended <= window.end)]
    if not len(calls) or not claimable:
        return totals
    names = list(claimable)
    owner = np.repeat(np.arange(len(names)), [len(claimable[name]) for name in names])
    pieces = np.concatenate([claimable[name] for name in names])
    waits = view.spans(calls)
    instants = np.r_[waits[:, 1], pieces[:, 0]]
    lead = np.r_[waits[:, 1] - waits[:, 0], np.zeros(len(pieces), np.int64)]
    demand = np.r_[np.zeros(len(waits), np.int64), pieces[:, 1] - pieces[:, 0]]
    order = np.argsort(instants, kind="stable")
    claimed = np.empty(len(order), np.int64)
    claimed[order] = spent(lead[order], demand[order])
    for index, name in enumerate(names):
        mine = int(claimed[len(waits) :][owner == index].sum())
        totals[name] -= mine
        totals["sync"] = totals.get("sync", 0) + mine
    return totals


def spent(lead: Ints, demand: Ints) -> Ints:
    """How much of each demand a store, filled by the leads in order, can meet."""
    wanted, filled = np.cumsum(demand), np.cumsum(lead)
    unmet = np.maximum.accumulate(np.maximum(wanted - filled, 0))
    return np.diff(wanted - unmet, prepend=0)


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
