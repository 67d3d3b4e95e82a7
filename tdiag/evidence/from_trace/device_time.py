"""Where a traced step's time went: the device's work, and what the host did while it idled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.from_trace.host_ops import Phase
from tdiag.evidence.from_trace.intervals import (
    NOTHING,
    Ints,
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
from tdiag.evidence.from_trace.nesting import nest
from tdiag.evidence.from_trace.sorted_events import (
    COMM,
    COMPUTE,
    D2H,
    H2D,
    Rows,
    TraceView,
    queue_of,
)
from tdiag.evidence.from_trace.window import NEXT_BATCH, OPTIMIZER_STEP, TracedWindow
from tdiag.model.threshold import Threshold

KIND_NAMES = {COMPUTE: "compute", COMM: "comm", H2D: "h2d", D2H: "d2h"}  # in order of precedence


def device_time(
    view: TraceView, window: TracedWindow, idle: Idle, states: dict[str, Spans]
) -> DeviceTime:
    """The time budget of a window in which work ran on a device."""
    components = _busy(view, window)
    busy = merged(*components.values())
    totals = {name: total(spans) for name, spans in components.items()}
    if window.sampled:  # most host events are missing: what the host did is unknown
        totals["unattributed"] = sum(idle.by_cause.values())
    else:
        totals |= idle.by_cause
    rows = window.began(view, view.kernels)
    allocations = window.began(view, view.matching(view.runtime, ALLOCATION))
    starved = _launch_starved(view, window, gaps(busy, window.begin, window.end), states)
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


def _queue_depth(view: TraceView, window: TracedWindow) -> float | None:
    """Median number of pieces of work running or queued at the moment more is issued."""
    known = view.launch >= 0
    issued = view.trace.ts_ns[view.launch[known]]
    ended = np.sort(view.trace.ends(view.work[known]))
    now = issued[(issued >= window.begin) & (issued < window.end)]
    if not len(now):
        return None
    before = np.searchsorted(np.sort(issued), now, side="left")
    return max(0.0, float(np.median(before - np.searchsorted(ended, now, side="right"))))


def busy_spans(view: TraceView, window: TracedWindow) -> Spans:
    """Intervals in which anything ran on the device."""
    return clip(view.spans(view.work), window.begin, window.end)


def _busy(view: TraceView, window: TracedWindow) -> dict[str, Spans]:
    """Device-busy intervals by kind of work; where kinds overlap, the one with precedence."""
    found: dict[str, Spans] = {}
    for kind, name in KIND_NAMES.items():
        spans = clip(view.spans(view.of_kind(kind)), window.begin, window.end)
        for other in found.values():
            spans = minus(spans, other)
        found[name] = spans
    return found


# A longer call does more than launch: preprocessing, creating the context, loading a module,
# capturing a graph.
ORDINARY_TIMES = Threshold(
    10,
    "times the median launch",
    "In 18 of 20 public traces (V100 to B200, MI210 to MI300) nine of ten launches return within 8"
    " times the median time since the one before.",
)


def _launch_starved(
    view: TraceView, window: TracedWindow, idle: Spans, states: dict[str, Spans]
) -> int:
    """Idle time before work that was launched only after the device had become idle, provided that
    the host launched at its usual pace in that time."""
    known = view.launch >= 0
    rows, calls = view.work[known], view.launch[known]
    if not len(idle) or not len(rows):
        return 0
    start, issued = view.trace.ts_ns[rows], view.trace.ts_ns[calls]
    order = np.argsort(start, kind="stable")
    start, issued = start[order], issued[order]
    first = np.searchsorted(start, idle[:, 1])  # first work after each gap
    hit = first < len(start)
    hit[hit] &= start[first[hit]] == idle[hit, 1]
    late = hit.copy()
    late[hit] = issued[first[hit]] >= idle[hit, 0]
    waiting = minus(idle[late], merged(*(states.get(name, NOTHING) for name in OWN_CAUSE)))
    return total(both(waiting, _launching(view, window, calls)))


def _launching(view: TraceView, window: TracedWindow, calls: Rows) -> Spans:
    """From the return of one launch to the return of the next, if that took no longer than
    usual."""
    returned = np.unique(view.trace.ends(window.began(view, np.unique(calls))))
    took = np.diff(returned)
    if not len(took):
        return NOTHING
    usual = took <= ORDINARY_TIMES * np.median(took)
    return union(returned[:-1][usual], returned[1:][usual])


# Calls that return only when the device has reached a point: CUDA, HIP, Level Zero, MTIA.
SYNC_CALL = re.compile(r"(Stream|Device|Event|Ctx)Synchronize|^ze\w+Synchronize|^synchronize")
ITEM = re.compile(r"^aten::item$")
ALLOCATION = re.compile(r"^(cuda|hip|cu)(Host)?(Mem)?(Malloc|Alloc|Free)", re.IGNORECASE)

COMPUTES_NS = Threshold(
    100_000,
    "ns",
    "Heuristic: an op that only launches or describes takes 5 to 10 µs, and a few times as long"
    " under the profiler.",
)
# An instant has one state: the first of these that applies.
STATES = (
    "data_wait", "alloc", "sync", "python_loss", "evaluation", "optimizer", "prepare", "cpu_ops",
    "launch",
)  # fmt: skip
OF_PHASE = {"data_wait": "data_wait", "loss": "python_loss", "evaluation": "evaluation"}


def blocking_calls(view: TraceView, window: TracedWindow) -> Rows:
    """Runtime calls that wait for the device: synchronisations, and copies to or from the host
    that last until the copy has ended (with pageable memory a copy synchronises).

    Only those of the host's own steps: the profiler synchronises when it stops.
    """
    syncs = view.matching(view.runtime, SYNC_CALL)
    copied = np.isin(view.work_kind, (H2D, D2H)) & (view.launch >= 0)
    calls, copies = view.launch[copied], view.work[copied]
    waited = view.trace.ends(calls) >= view.trace.ends(copies)
    rows: Rows = np.union1d(syncs, calls[waited])
    start = view.trace.ts_ns[rows]
    inside: Rows = rows[(start >= window.begin) & (start < window.host_end)]
    return inside


def host_states(view: TraceView, window: TracedWindow, phases: Sequence[Phase]) -> dict[str, Spans]:
    """Disjoint sets of instants by host state, over all threads of the traced process.

    ``prepare`` is a state only without a DataLoader: the loop makes its batches then.
    """
    by_hand = {} if any(name == "data_wait" for name, *_ in phases) else {"prepare": "prepare"}
    raw = {
        "data_wait": view.spans(view.matching(view.annotations, NEXT_BATCH)),
        "alloc": view.spans(view.matching(view.runtime, ALLOCATION)),
        "sync": view.spans(blocking_calls(view, window)),
        "optimizer": view.spans(view.matching(view.annotations, OPTIMIZER_STEP)),
        "cpu_ops": _on_host(view),
        "launch": merged(view.spans(view.ops), view.spans(view.runtime)),
    }
    for phase, state in (OF_PHASE | by_hand).items():
        inside = [(begin, end) for name, begin, end in phases if name == phase]
        if inside:
            times = np.array(inside, np.int64)
            raw[state] = merged(raw.get(state, NOTHING), union(times[:, 0], times[:, 1]))
    found: dict[str, Spans] = {}
    taken = NOTHING
    for state in STATES:
        if len(spans := raw.get(state, NOTHING)):
            found[state] = minus(spans, taken)
            taken = merged(taken, spans)
    return found


def _on_host(view: TraceView) -> Spans:
    """Ops that call no other, ask nothing of a device, and take too long for that alone. None if
    the trace has no calls of a device's runtime."""
    if not len(view.runtime):
        return NOTHING
    ops = nest(view.trace, view.ops)
    calls = view.runtime
    asking = ops.around(view.trace.lane[calls].astype(np.int64), view.trace.ts_ns[calls])
    alone = ops.end - ops.start >= COMPUTES_NS
    alone[ops.parent[ops.parent >= 0]] = False
    alone[asking[asking >= 0]] = False
    return union(ops.start[alone], ops.end[alone])


def split(spans: Spans, states: dict[str, Spans]) -> dict[str, Spans]:
    """``spans`` by host state; ``other`` is what no state covers."""
    parts = {state: both(spans, covered) for state, covered in states.items()}
    rest = minus(spans, merged(*states.values()))
    return {name: part for name, part in (parts | {"other": rest}).items() if len(part)}


# Waiting costs the host its lead over the device; idle time in these states already has a cause.
WAITING = ("sync", "data_wait")
OWN_CAUSE = frozenset({*WAITING, "alloc"})


@dataclass(frozen=True)
class Idle:
    """``by_cause``: idle ns of the window by host state; the values sum to the idle time exactly.
    ``calls``: the blocking calls; ``caused``: device idle ns that each of them caused."""

    by_cause: dict[str, int]
    calls: Rows
    caused: Ints


def idle_causes(
    view: TraceView, window: TracedWindow, busy: Spans, states: dict[str, Spans]
) -> Idle:
    """Attribute every idle instant of the window to one cause.

    A wait also causes idle time after it: without the wait, the host would be ahead by the time
    the device worked during it. Later gaps are charged to the most recent wait whose lead is not
    used up: this replays the device queue without the waits, in one pass. So a wait for a device
    that never idles costs nothing, and a short wait cannot explain a long gap.
    """
    idle = gaps(busy, window.begin, window.end)
    parts = split(idle, states)
    totals = {name: total(spans) for name, spans in parts.items()}
    waits = {name: clip(states.get(name, NOTHING), window.begin, window.end) for name in WAITING}
    spans = np.concatenate(list(waits.values()))
    if not len(spans):
        return Idle(totals, NOTHING[:, 0], NOTHING[:, 0])
    names = [name for name in parts if name not in OWN_CAUSE]
    pieces = np.concatenate([NOTHING, *(parts[name] for name in names)])
    owner = np.repeat(np.arange(len(names)), [len(parts[name]) for name in names])
    worked = covered(busy, spans[:, 0], spans[:, 1])
    used, met = charge(spans[:, 1], worked, pieces[:, 0], pieces[:, 1] - pieces[:, 0])
    for index, name in enumerate(names):
        totals[name] -= int(met[owner == index].sum())
    first = 0
    for name, mine in waits.items():
        totals[name] = totals.get(name, 0) + int(used[first : first + len(mine)].sum())
        first += len(mine)
    syncs = waits["sync"]
    caused = used[: len(syncs)] + (syncs[:, 1] - syncs[:, 0]) - worked[: len(syncs)]
    return Idle(totals, *_by_call(view, window, syncs, caused))


def _by_call(
    view: TraceView, window: TracedWindow, syncs: Spans, caused: Ints
) -> tuple[Rows, Ints]:
    """Blocking calls, each with the idle time of the waiting period that it begins."""
    calls = blocking_calls(view, window)
    calls = calls[np.lexsort((-view.trace.dur_ns[calls], view.trace.ts_ns[calls]))]
    per_call = np.zeros(len(calls), np.int64)
    at = np.searchsorted(view.trace.ts_ns[calls], syncs[:, 0])
    known = at < len(calls)
    # Pieces of one call, split by another state, are added up.
    np.add.at(per_call, at[known], caused[known])
    return calls, per_call


def charge(ends: Ints, lead: Ints, begins: Ints, demand: Ints) -> tuple[Ints, Ints]:
    """Charge each demand to the latest leads before it: ``(used of each lead, met of each
    demand)``. Leads become available at ``ends``, demands arise at ``begins``.

    Leads form a stack: what remains of a lead is the part below which the stack never sinks
    later.
    """
    count = len(ends)
    order = np.argsort(np.r_[ends, begins], kind="stable")
    won = np.r_[lead, np.zeros_like(demand)][order]
    wanted = np.cumsum(np.r_[np.zeros_like(lead), demand][order])
    unmet = np.maximum.accumulate(np.maximum(wanted - np.cumsum(won), 0))
    met = np.diff(wanted - unmet, prepend=0)
    height = np.cumsum(won - met)
    lowest = np.minimum.accumulate(height[::-1])[::-1]  # from here on
    used = won - np.clip(lowest - (height - won), 0, won)
    both = np.empty(len(order), np.int64)
    both[order] = used + met  # one of the two is 0
    return both[:count], both[count:]
