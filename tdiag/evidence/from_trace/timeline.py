"""The traced step of median length, lane by lane."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tdiag.evidence.from_trace.intervals import Spans, clip, covered, minus
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.view import COMM, COMPUTE, D2H, H2D, View
from tdiag.model.timeline import CELLS, Lane, Span, Timeline

DEVICE_LANES = {
    "compute": {"compute": COMPUTE},
    "comm": {"comm": COMM},
    "copies": {"h2d": H2D, "d2h": D2H},
}


def timeline(view: View, window: Window, states: Mapping[str, Spans]) -> Timeline:
    """``states``: the host's, disjoint. A lane in which nothing ran is left out."""
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


def of_host(view: View, states: Mapping[str, Spans]) -> dict[str, Spans]:
    """The host's states as a timeline names them."""
    host = dict(states)
    if "launch" in host and not len(view.work):
        host["ops"] = host.pop("launch")  # without a device they launch nothing
    return host


def median_step(window: Window) -> tuple[int, int]:
    """Begin and end of the step of median length, the shorter one of two, ns."""
    durations = np.diff(window.bounds)
    middle = int(np.argsort(durations, kind="stable")[(len(durations) - 1) // 2])
    return int(window.bounds[middle]), int(window.bounds[middle + 1])


def lane(name: str, kinds: Mapping[str, Spans], step_ns: int) -> Lane:
    """Spans by kind, from the step's begin. Where two kinds overlap, the first one has it."""
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
    """Each cell's kinds one after another from its begin, as long as they lasted in it."""
    edges = np.arange(CELLS + 1) * step_ns // CELLS
    at = edges[:-1].copy()
    placed = {}
    for kind, spans in kinds.items():
        until = at + covered(spans, edges[:-1], edges[1:])
        placed[kind] = np.stack([at, until], axis=1)
        at = until
    return placed


def _joined(spans: list[Span]) -> list[Span]:
    """Neighbours of one kind as one span."""
    joined: list[Span] = []
    for span in spans:
        if joined and joined[-1].kind == span.kind and joined[-1].end_ns == span.begin_ns:
            span = Span(joined.pop().begin_ns, span.end_ns, span.kind)
        joined.append(span)
    return joined
