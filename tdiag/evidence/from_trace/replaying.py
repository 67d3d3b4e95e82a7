"""The traced steps as host calls and device queues, rebuilt from start and end times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tdiag.evidence.from_trace.device_time import ALLOCATION, SYNC_CALL
from tdiag.evidence.from_trace.intervals import NOTHING, Ints, Spans, covered
from tdiag.evidence.from_trace.nesting import nest
from tdiag.evidence.from_trace.queues import CLOCK_NS, NEAR_NS, Queues, queues, tags_of
from tdiag.evidence.from_trace.sorted_events import D2H, H2D, Rows, TraceView
from tdiag.evidence.from_trace.window import TracedWindow
from tdiag.evidence.replay import AFTER_D2H, NONE, Replay
from tdiag.model.threshold import NOTICEABLE_FRAC, Threshold
from tdiag.trace.decode import Interned

# Replaying this many calls and kernels takes a hundredth of a second. One step alone may hold more,
# but a report must not take seconds.
ENOUGH_EVENTS, MOST_EVENTS = 4_000, 12_000
ISSUING_FRAC = Threshold(
    0.01,
    "of the work",
    "Heuristic: a thread that issues less does not train: it pins batches, or is a watchdog.",
)
# States in which the host uses what was copied to it, or frees it.
USING = ("host prepare", "host other", "host python_loss", "host cpu_ops")
# States in which issuing work is part of what a fix would shorten.
OF_PHASE = ("python_loss", "evaluation", "optimizer")


class Unexplained(Exception):
    """Why this trace cannot be replayed, worded for the user."""


@dataclass(frozen=True)
class _Calls:
    """Outermost runtime calls of the threads that issue work, by start; times relative to the start
    of the first step. ``issues``: for each of ``view.work`` the index of its call, −1 if none of
    these."""

    rows: Rows
    begin: Ints
    end: Ints
    issues: Ints


def replay(view: TraceView, window: TracedWindow, states: Mapping[str, Spans]) -> Replay:
    """``states``: the host's, disjoint. Raises Unexplained if the trace lacks what a replay needs,
    or if too much of the waiting has no reason in the trace."""
    if window.sampled:
        raise Unexplained("most host events are missing from the trace")
    origin = window.begin
    steps, calls = _calls(view, window)
    end = (int(window.bounds[steps]) if steps < window.count else window.host_end) - origin
    mine = calls.issues >= 0
    before = ~mine & (view.trace.ts_ns[view.work] < origin + end)
    before &= view.trace.ends(view.work) > origin
    chosen = np.flatnonzero(mine | before)
    found = queues(view, view.work[chosen], calls.issues[chosen], calls.begin, calls.end, origin)
    waits, tails = _waits(view, calls, found)
    clock = np.maximum.accumulate(np.r_[0, calls.end])
    beside = calls.begin < clock[:-1]
    if beside.sum() > NOTICEABLE_FRAC * len(beside):
        raise Unexplained("several threads issue device work at the same time")
    unexplained = found.unexplained_ns + int(tails[tails > NEAR_NS].sum())
    if unexplained > NOTICEABLE_FRAC * end:
        raise Unexplained("what the device work waited for is not in the trace")
    tags = Interned[str]()
    kinds = tags_of(view, found.rows)
    host = _host(states, origin, clock, np.r_[calls.begin, end], tags)
    host[:-1][beside] = 0
    names = [view.trace.names[name] for name in view.trace.name[calls.rows].tolist()]
    issued = dict(zip(found.call.tolist(), kinds, strict=True))
    host = _use_copies(host, tags, names, issued)
    of_work = [tags[tag] for tag in kinds]
    waiting = [number for numbers in waits for number in numbers]
    awaited = np.array([len(numbers) for numbers in waits], np.int64)
    since = calls.begin.copy()
    np.maximum.at(since, np.repeat(np.arange(len(since)), awaited), found.end[waiting])
    call_tags = [tags[tag] for tag in _tags(names, issued, calls, waits, states, origin)]
    return Replay(
        steps=steps,
        total_ns=max(int(clock[-1]), end, int(found.end.max())),
        tags=tuple(tags),
        host=np.pad(host, ((0, 0), (0, len(tags) - host.shape[1]))),
        tag=np.array(call_tags, np.int64),
        began=calls.begin,
        beside=np.where(beside, np.diff(calls.begin, prepend=0), NONE),
        own=calls.end - since,
        issues=np.bincount(found.call[found.call >= 0], minlength=len(call_tags)),
        awaited=awaited,
        waits=np.array(waiting, np.int64),
        queued=int((found.call < 0).sum()),
        work_tag=np.array(of_work, np.int64),
        length=found.end - found.begin,
        after=found.after,
        joins=found.joins,
        lag=found.lag,
        latency=found.latency_ns,
        gap=found.gap_ns,
    )


def _calls(view: TraceView, window: TracedWindow) -> tuple[int, _Calls]:
    """The calls of the leading steps, as many steps as are needed."""
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
    number = np.full(len(trace), NONE, np.int64)  # trace event → index of its call
    of_outer = np.full(len(nested.rows), NONE, np.int64)
    of_outer[outer] = np.arange(len(outer))
    number[nested.rows] = of_outer[top]
    issues = np.where(known, number[view.launch], NONE)
    begin, end = nested.start[outer] - window.begin, nested.end[outer] - window.begin
    return steps, _Calls(nested.rows[outer], begin, end, issues)


def _waits(view: TraceView, calls: _Calls, found: Queues) -> tuple[list[tuple[int, ...]], Ints]:
    """For each call the work it waits for, and how long it ran on without a reason in the trace.

    A synchronisation waits for all work issued earlier that had ended when it returned: the last
    piece on each stream. A call waits for its own copy if the copy had ended when the call
    returned.
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
    states: Mapping[str, Spans], origin: int, begin: Ints, end: Ints, tags: Interned[str]
) -> Ints:
    """What the host did in each of these intervals: one column per state, in the order of its
    tags."""
    end = np.maximum(begin, end)
    columns = [covered(spans, begin + origin, end + origin) for spans in states.values()]
    for state in (*states, "other"):
        tags[f"host {state}"]
    return np.stack([*columns, end - begin - sum(columns)], axis=1)


def _use_copies(
    host: Ints, tags: Interned[str], names: Sequence[str], work: Mapping[int, str]
) -> Ints:
    """``host`` with one more column: what the host does after a copy to it, and after the
    synchronisation for that copy, until its next call."""
    column = tags[AFTER_D2H]
    assert column == host.shape[1], "the columns are those of the host's states"
    after = [call + 1 for call, kind in work.items() if call >= 0 and kind.startswith("d2h")]
    synced = [call + 1 for call in after if call < len(names) and SYNC_CALL.search(names[call])]
    used = np.zeros((len(host), 1), np.int64)
    for row in {*after, *synced}:
        for number in (number for tag, number in tags.items() if tag in USING):
            used[row] += host[row, number]
            host[row, number] = 0
    return np.hstack([host, used])


def _tags(
    names: Sequence[str],
    issued: Mapping[int, str],
    calls: _Calls,
    waits: list[tuple[int, ...]],
    states: Mapping[str, Spans],
    origin: int,
) -> Iterator[str]:
    """Each call's tag."""
    during = dict.fromkeys(range(len(names)), "call")
    for state in OF_PHASE:
        begin = calls.begin + origin
        inside = covered(states.get(state, NOTHING), begin, begin + 1)
        during |= dict.fromkeys(np.flatnonzero(inside).tolist(), f"host {state}")
    for number, name in enumerate(names):
        work = issued.get(number, "")
        if waits[number]:
            yield f"wait {work if work.startswith(('h2d', 'd2h')) else name}"
        elif work.startswith(("h2d", "d2h")):
            yield work
        else:
            yield "alloc" if ALLOCATION.search(name) else during[number]
