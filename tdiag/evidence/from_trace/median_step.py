"""The traced step of median length, for drawing: lane by lane, and event by event."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tdiag.evidence.from_trace.host_ops import Phase
from tdiag.evidence.from_trace.intervals import NOTHING, Ints, Spans, clip, covered, minus
from tdiag.evidence.from_trace.nesting import outermost
from tdiag.evidence.from_trace.sorted_events import (
    COMM,
    COMPUTE,
    D2H,
    H2D,
    Rows,
    TraceView,
    queue_of,
)
from tdiag.evidence.from_trace.window import TracedWindow
from tdiag.evidence.steps import EventLane, StepEvent, StepEvents
from tdiag.model.timeline import CELLS, Lane, Span, Timeline

DEVICE_LANES = {
    "compute": {"compute": COMPUTE},
    "comm": {"comm": COMM},
    "copies": {"h2d": H2D, "d2h": D2H},
}
# The step is drawn some thousand pixels wide: shorter events are merged with their neighbours.
RESOLUTION = 1_000
MOST_EVENTS = 3_000  # in all lanes together; a browser draws this many without delay
MOST_LANES = 4  # threads, and streams per role: the busiest


def timeline(view: TraceView, window: TracedWindow, states: Mapping[str, Spans]) -> Timeline:
    """``states``: the host's, disjoint. Empty lanes are left out."""
    begin, end = median_step(window)
    kinds = {} if window.sampled else {"host": of_host(view, states)}
    work = view.trace.ts_ns[view.work] < end
    work &= view.trace.ends(view.work) > begin
    for name, numbers in DEVICE_LANES.items():
        rows = {kind: view.work[work & (view.work_kind == n)] for kind, n in numbers.items()}
        kinds[name] = {kind: view.spans(found) for kind, found in rows.items()}
    lanes = [
        lane(name, {kind: clip(spans, begin, end) - begin for kind, spans in found.items()},
             end - begin)
        for name, found in kinds.items()
    ]  # fmt: skip
    drawn = tuple(found for found in lanes if found.spans)
    steps = 0 if window.found_by == "span" else window.count
    return Timeline(step_ns=end - begin, steps=steps, source="trace", lanes=drawn)


def of_host(view: TraceView, states: Mapping[str, Spans]) -> dict[str, Spans]:
    """The host's states under their names in a timeline."""
    host = dict(states)
    if "launch" in host and not len(view.work):
        host["ops"] = host.pop("launch")  # without a device, ops launch nothing
    return host


def median_step(window: TracedWindow) -> tuple[int, int]:
    """Start and end of the step of median length (of two, the shorter), ns."""
    durations = np.diff(window.bounds)
    middle = int(np.argsort(durations, kind="stable")[(len(durations) - 1) // 2])
    return int(window.bounds[middle]), int(window.bounds[middle + 1])


def lane(name: str, kinds: Mapping[str, Spans], step_ns: int) -> Lane:
    """Spans by kind, relative to the step's start. Where two kinds overlap, the first one
    counts."""
    disjoint: dict[str, Spans] = {}
    for kind, spans in kinds.items():
        for other in disjoint.values():
            spans = minus(spans, other)
        disjoint[kind] = spans
    exact = sum(map(len, disjoint.values())) <= CELLS
    if not exact:
        disjoint = _in_cells(disjoint, step_ns)
    found = [
        Span(begin, end, kind)
        for kind, spans in disjoint.items()
        for begin, end in spans.tolist()
        if end > begin
    ]
    return Lane(name=name, spans=tuple(_joined(sorted(found, key=_begin))), exact=exact)


def _begin(span: Span) -> int:
    return span.begin_ns


def _in_cells(kinds: Mapping[str, Spans], step_ns: int) -> dict[str, Spans]:
    """Each cell's kinds in a row from its start, each as long as its total in that cell."""
    edges = np.arange(CELLS + 1) * step_ns // CELLS
    at = edges[:-1].copy()
    placed = {}
    for kind, spans in kinds.items():
        until = at + covered(spans, edges[:-1], edges[1:])
        placed[kind] = np.stack([at, until], axis=1)
        at = until
    return placed


def _joined(spans: list[Span]) -> list[Span]:
    """Merges adjacent spans of the same kind."""
    joined: list[Span] = []
    for span in spans:
        if joined and joined[-1].kind == span.kind and joined[-1].end_ns == span.begin_ns:
            span = Span(joined.pop().begin_ns, span.end_ns, span.kind)
        joined.append(span)
    return joined


def step_events(
    view: TraceView, window: TracedWindow, states: Mapping[str, Spans], phases: Sequence[Phase] = ()
) -> StepEvents | None:  # fmt: skip
    """None for a sampled trace: its gaps mean nothing. ``states``: the host's.

    ``phases``: recorded by a probe on the host. A thread's lane holds its outermost ops and runtime
    calls, a stream's lane what ran in it.
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
    lane = event_lane("phases", "phases", phases, step.begin, step.end, step.finest_ns)
    return [lane, step.host(host), *step.threads(), *step.streams(), *step.copies()]


def event_lane(
    name: str, role: str, spans: Sequence[tuple[str, int, int]], begin: int, end: int,
    finest_ns: float = 0.0,
) -> EventLane:  # fmt: skip
    """``spans``: name, start and end, on the same clock as ``begin`` and ``end`` of the step."""
    names, begins, ends = map(list, zip(*spans, strict=True)) if spans else ([], [], [])
    at = np.clip(np.array([begins, ends], np.int64), begin, end) - begin
    found = merge(names.__getitem__, at[0], at[1], finest_ns)
    return EventLane(name=name, role=role, events=tuple(found))


def merge(
    name: Callable[[int], str], begin: Ints, end: Ints, finest_ns: float
) -> Iterator[StepEvent]:  # fmt: skip
    """Events in order of start; empty ones are left out. Events shorter than ``finest_ns`` are
    merged with short neighbours unless a gap longer than that separates them, which bounds their
    number. ``name``: gives each event's name by index."""
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
        yield StepEvent(
            name=name(number), begin_ns=start, end_ns=stop, merged=count, idle_ns=between
        )  # fmt: skip


@dataclass(frozen=True)
class _Step:
    view: TraceView
    begin: int
    end: int
    finest_ns: float

    def _during(self, rows: Rows) -> Rows:
        """Those of ``rows`` that overlap the step."""
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
        """The busiest threads; annotated threads first, because they train."""
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
