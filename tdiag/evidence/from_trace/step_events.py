"""The traced step of median length event by event: threads, streams, copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tdiag.evidence.from_trace.host_ops import Phase
from tdiag.evidence.from_trace.intervals import NOTHING, Ints, Spans, clip
from tdiag.evidence.from_trace.nesting import outermost
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.timeline import median_step, of_host
from tdiag.evidence.from_trace.view import COMM, COMPUTE, D2H, H2D, Rows, View, queue_of
from tdiag.evidence.history import Event, EventLane, StepEvents

# A picture of the step is some thousand pixels wide: what is shorter is drawn with its neighbours.
RESOLUTION = 1_000
MOST_EVENTS = 3_000  # of all lanes together: what a browser draws without delay
MOST_LANES = 4  # threads, and streams of one role: those that did most


def step_events(
    view: View, window: Window, states: Mapping[str, Spans], phases: Sequence[Phase] = ()
) -> StepEvents | None:  # fmt: skip
    """None for a trace that was sampled: its gaps tell nothing. ``states``: the host's.

    ``phases``: what a probe told of the host. Of a thread its outermost ops and runtime calls are
    told, of a stream what ran in it.
    """
    if window.sampled:
        return None
    begin, end = median_step(window)
    host = of_host(view, states)
    finest = (end - begin) / RESOLUTION
    lanes = _lanes(_Step(view, begin, end, finest), phases, host)
    while sum(len(found.events) for found in lanes) > MOST_EVENTS:
        finest *= 2
        lanes = _lanes(_Step(view, begin, end, finest), phases, host)
    return StepEvents(
        number=int(np.searchsorted(window.bounds, begin)) + 1,
        of=window.count,
        begin_ns=begin,
        duration_ns=end - begin,
        lanes=tuple(found for found in lanes if found.events),
    )


def _lanes(step: _Step, phases: Sequence[Phase], host: Mapping[str, Spans]) -> list[EventLane]:
    told = lane("phases", "phases", phases, step.begin, step.end, step.finest_ns)
    return [told, step.host(host), *step.threads(), *step.streams(), *step.copies()]


def lane(
    name: str, role: str, spans: Sequence[tuple[str, int, int]], begin: int, end: int,
    finest_ns: float = 0.0,
) -> EventLane:  # fmt: skip
    """``spans``: name, begin and end on the clock of the step's ``begin`` and ``end``."""
    names, begins, ends = map(list, zip(*spans, strict=True)) if spans else ([], [], [])
    at = np.clip(np.array([begins, ends], np.int64), begin, end) - begin
    found = merge(names.__getitem__, at[0], at[1], finest_ns)
    return EventLane(name=name, role=role, events=tuple(found))


def merge(
    name: Callable[[int], str], begin: Ints, end: Ints, finest_ns: float
) -> Iterator[Event]:  # fmt: skip
    """In order of their begin; empty ones are left out. Those shorter than ``finest_ns`` become one
    with such neighbours, if no longer gap lies between, so that their number is bounded. ``name``:
    of each, by its number."""
    order = np.argsort(begin, kind="stable")
    order = order[end[order] > begin[order]]
    if not len(order):
        return
    begin, end = begin[order], end[order]
    tiny = end - begin < finest_ns
    joins = np.r_[False, tiny[1:] & tiny[:-1] & (begin[1:] - end[:-1] < finest_ns)]
    group = np.cumsum(~joins) - 1
    first = np.flatnonzero(~joins)
    longest = np.lexsort((end - begin, group))[np.r_[first[1:], len(group)] - 1]
    gaps = np.r_[0, np.maximum(begin[1:] - np.maximum.accumulate(end)[:-1], 0)]
    idle = np.add.reduceat(np.where(joins, gaps, 0), first)
    columns = (
        begin[first],
        np.maximum.reduceat(end, first),
        order[longest],
        np.bincount(group),
        idle,
    )
    for start, stop, number, count, between in zip(*(c.tolist() for c in columns), strict=True):
        yield Event(
            name=name(number), begin_ns=start, end_ns=stop, merged=count, idle_ns=between
        )  # fmt: skip


@dataclass(frozen=True)
class _Step:
    view: View
    begin: int
    end: int
    finest_ns: float

    def _during(self, rows: Rows) -> Rows:
        """Those of ``rows`` that went on during the step."""
        trace = self.view.trace
        return rows[(trace.ts_ns[rows] < self.end) & (trace.ends(rows) > self.begin)]

    def _lane(self, name: str, role: str, rows: Rows) -> EventLane:
        trace = self.view.trace
        at = np.clip([trace.ts_ns[rows], trace.ends(rows)], self.begin, self.end) - self.begin
        names = trace.names, trace.name[rows]
        found = merge(lambda number: names[0][names[1][number]], at[0], at[1], self.finest_ns)
        return EventLane(name=name, role=role, events=tuple(found))

    def host(self, states: Mapping[str, Spans]) -> EventLane:
        found = [clip(spans, self.begin, self.end) - self.begin for spans in states.values()]
        names, of = list(states), np.repeat(np.arange(len(found)), list(map(len, found)))
        at = np.concatenate([NOTHING, *found])
        events = merge(lambda number: names[of[number]], at[:, 0], at[:, 1], self.finest_ns)
        return EventLane(name="host", role="phases", events=tuple(events))

    def threads(self) -> Iterator[EventLane]:
        """The busiest ones; those that were annotated first, for these train."""
        view, trace = self.view, self.view.trace
        outer = outermost(trace, self._during(np.concatenate([view.ops, view.runtime])))
        lanes = trace.lane[outer]
        main = set(trace.lane[self._during(view.annotations)].tolist())
        busy = {n: int(trace.dur_ns[outer[lanes == n]].sum()) for n in np.unique(lanes).tolist()}
        for number in sorted(busy, key=lambda n: (n not in main, -busy[n]))[:MOST_LANES]:
            rows = outer[lanes == number]
            backward = number not in main and bool((trace.forward_thread[rows] > 0).any())
            name = f"{'autograd' if backward else 'thread'} {trace.lanes[number][1]}"
            yield self._lane(name, "host", rows)

    def streams(self) -> Iterator[EventLane]:
        for role, kind in (("device", COMPUTE), ("comm", COMM)):
            for name, rows in self._by_stream(self._during(self.view.of_kind(kind))):
                yield self._lane(name, role, rows)

    def _by_stream(self, rows: Rows) -> Iterator[tuple[str, Rows]]:
        """The busiest streams among these events."""
        trace = self.view.trace
        streams, which = np.unique(queue_of(trace, rows), return_inverse=True)
        busy = np.bincount(which, trace.dur_ns[rows], len(streams))
        for number in np.argsort(-busy, kind="stable")[:MOST_LANES].tolist():
            mine = rows[which == number]
            device, stream = int(trace.device[mine[0]]), int(trace.stream[mine[0]])
            where = f"device {device} " if device >= 0 else ""
            yield f"{where}stream {stream}", mine

    def copies(self) -> Iterator[EventLane]:
        for kind, name in ((H2D, "host to device"), (D2H, "device to host")):
            yield self._lane(name, "copies", self._during(self.view.of_kind(kind)))
