"""The traced steps as host calls and device queues, from when everything began and ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tdiag.evidence.from_trace.host_states import ALLOCATION, SYNC_CALL
from tdiag.evidence.from_trace.intervals import Ints, Mask, Spans, covered
from tdiag.evidence.from_trace.nesting import nest
from tdiag.evidence.from_trace.queues import CLOCK_NS, NEAR_NS, Queues, pieces, queues, tags_of
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.view import D2H, H2D, Rows, View
from tdiag.evidence.replay import NONE, Call, Replay

# So many calls and pieces of work are replayed in a few hundredths of a second; one step alone may
# have several times as many.
ENOUGH_EVENTS, MOST_EVENTS = 20_000, 100_000
# What issues less of the work is not the training: a thread that pins batches, a watchdog.
ISSUING_FRAC = 0.01
# As the verdict's line between what matters and what does not: of the steps, so much waiting may be
# unexplained, and of the calls, so many may run beside others, before a replay tells nothing.
UNEXPLAINED_FRAC = 0.05


class Unexplained(Exception):
    """Why this trace cannot be replayed, in the user's words."""


@dataclass(frozen=True)
class _Calls:
    """Outermost runtime calls of the threads that issue work, by begin; times from the first
    step's begin. ``issues``: per ``view.work`` the number of its call, −1 for none of these."""

    rows: Rows
    begin: Ints
    end: Ints
    issues: Ints


def replay(view: View, window: Window, states: Mapping[str, Spans]) -> Replay:
    """``states``: of the host, disjoint. Raises Unexplained where the trace lacks what a replay
    needs, or where too much of it waits for what the trace does not tell."""
    if window.sampled:
        raise Unexplained("most host events are missing from the trace")
    origin = window.begin
    steps, calls = _calls(view, window)
    end = (int(window.bounds[steps]) if steps < window.count else window.host_end) - origin
    mine = calls.issues >= 0
    before = ~mine & (view.trace.ts_ns[view.work] < origin + end)
    before &= view.trace.end_ns[view.work] > origin
    chosen = np.flatnonzero(mine | before)
    found = queues(view, view.work[chosen], calls.issues[chosen], calls.begin, calls.end, origin)
    waits, tails = _waits(view, calls, found)
    clock = np.maximum.accumulate(np.r_[0, calls.end])
    beside = calls.begin < clock[:-1]
    unexplained = found.unexplained_ns + int(tails[tails > NEAR_NS].sum())
    if unexplained > UNEXPLAINED_FRAC * end:
        raise Unexplained("what the device work waited for is not in the trace")
    if beside.sum() > UNEXPLAINED_FRAC * len(beside):
        raise Unexplained("several threads issue device work at the same time")
    host = _host(states, origin, np.r_[clock[:-1], clock[-1]], np.r_[calls.begin, end])
    return Replay(
        steps=steps,
        calls=tuple(_each(view, calls, found, host, beside, waits)),
        work=pieces(view, found),
        queued=int((found.call < 0).sum()),
        latency_ns=found.latency_ns,
        gap_ns=found.gap_ns,
        rest=host[-1],
    )


def _calls(view: View, window: Window) -> tuple[int, _Calls]:
    """The calls of as many leading steps as are enough."""
    trace = view.trace
    known = view.launch >= 0
    per_lane = np.bincount(trace.lane[view.launch[known]], minlength=1)
    if not known.any():
        raise Unexplained("no call that launches device work is in the trace")
    lanes = np.flatnonzero(per_lane >= ISSUING_FRAC * per_lane.sum())
    rows = view.runtime[np.isin(trace.lane[view.runtime], lanes)]
    start = trace.ts_ns[rows]
    rows = rows[(start >= window.begin) & (start < window.host_end)]
    nested = nest(trace, rows)
    until = np.searchsorted(np.sort(trace.ts_ns[rows]), window.bounds[1:])
    until += np.searchsorted(np.sort(trace.ts_ns[view.work]), window.bounds[1:])
    if not len(rows) or until[0] > MOST_EVENTS:
        raise Unexplained("a traced step holds more calls and kernels than are replayed"
                          if len(rows) else "no runtime calls are in the traced steps")  # fmt: skip
    steps = max(1, int((until <= ENOUGH_EVENTS).sum()))
    top = nested.parent.copy()
    top[top < 0] = np.flatnonzero(top < 0)
    while (top[top] != top).any():
        top = top[top]
    outer = nested.outermost
    outer = outer[np.argsort(nested.start[outer], kind="stable")]
    outer = outer[nested.start[outer] < window.bounds[steps]]
    number = np.full(len(trace), NONE, np.int64)  # of each event of the trace, its call
    of_outer = np.full(len(nested.rows), NONE, np.int64)
    of_outer[outer] = np.arange(len(outer))
    number[nested.rows] = of_outer[top]
    issues = np.where(known, number[view.launch], NONE)
    begin, end = nested.start[outer] - window.begin, nested.end[outer] - window.begin
    return steps, _Calls(nested.rows[outer], begin, end, issues)


def _waits(view: View, calls: _Calls, found: Queues) -> tuple[list[tuple[int, ...]], Ints]:
    """For each call the work that it awaits, and for how long it went on without a reason.

    A synchronisation awaits all work issued before that had ended when it returned, the last of
    each stream; a copy that had ended when its call returned is awaited by it.
    """
    waits: list[tuple[int, ...]] = [()] * len(calls.rows)
    tails = np.zeros(len(calls.rows), np.int64)
    issued_until = np.searchsorted(found.call, np.arange(len(calls.rows)), side="right")
    streams = [np.flatnonzero(found.stream == s) for s in range(int(found.stream.max()) + 1)]
    ends = [np.maximum.accumulate(found.end[numbers]) for numbers in streams]
    for call in np.flatnonzero(view.trace.named(calls.rows, SYNC_CALL.search)).tolist():
        returned = calls.end[call] + CLOCK_NS
        last = []
        for numbers, until in zip(streams, ends, strict=True):
            issued = int(np.searchsorted(numbers, issued_until[call]))
            at = min(issued, int(np.searchsorted(until, returned, side="right"))) - 1
            if at >= 0:
                last.append(int(numbers[at]))
        waits[call] = tuple(last)
        since = max([calls.begin[call], *(found.end[number] for number in last)])
        tails[call] = calls.end[call] - since
    copied = np.isin(view.work_kind[np.searchsorted(view.work, found.rows)], (H2D, D2H))
    copied &= (found.call >= 0) & (calls.end[found.call] >= found.end)
    for number in np.flatnonzero(copied).tolist():
        waits[found.call[number]] += (number,)
    return waits, tails


def _host(
    states: Mapping[str, Spans], origin: int, begin: Ints, end: Ints
) -> list[tuple[tuple[str, int], ...]]:
    """What the host did in each of these intervals, by state."""
    length = np.maximum(end - begin, 0)
    stop = begin + length
    rest = length.copy()
    parts: list[list[tuple[str, int]]] = [[] for _ in begin]
    for state, spans in states.items():
        inside = covered(spans, begin + origin, stop + origin)
        rest -= inside
        for number in np.flatnonzero(inside).tolist():
            parts[number].append((f"host {state}", int(inside[number])))
    for number in np.flatnonzero(rest).tolist():
        parts[number].append(("host other", int(rest[number])))
    return [tuple(found) for found in parts]


def _each(
    view: View,
    calls: _Calls,
    found: Queues,
    host: list[tuple[tuple[str, int], ...]],
    beside: Mask,
    waits: list[tuple[int, ...]],
) -> Iterator[Call]:
    names = [view.trace.names[name] for name in view.trace.name[calls.rows].tolist()]
    issues = np.bincount(found.call[found.call >= 0], minlength=len(names)).tolist()
    tags = tags_of(view, found.rows)
    first = np.searchsorted(found.call, np.arange(len(names))).tolist()
    begin, end, ended = calls.begin.tolist(), calls.end.tolist(), found.end.tolist()
    for number, name in enumerate(names):
        work = tags[first[number]] if issues[number] else ""
        copies = work if work.startswith(("h2d", "d2h")) else ""
        if waits[number]:
            tag = f"wait {copies}" if copies.startswith("h2d") else f"wait {name}"
        else:
            tag = copies or ("alloc" if ALLOCATION.search(name) else "call")
        since = max([begin[number], *(ended[awaited] for awaited in waits[number])])
        yield Call(
            tag=tag,
            host=() if beside[number] else host[number],
            beside_ns=begin[number] - begin[number - 1] if beside[number] else NONE,
            own_ns=end[number] - since,
            waits=waits[number],
            issues=issues[number],
            began_ns=begin[number],
        )
