"""Compiled code in the traced steps, by torch's region names."""

from __future__ import annotations

import re

import numpy as np

from tdiag.evidence.compiling import CompiledRegions
from tdiag.evidence.from_trace.intervals import Ints
from tdiag.evidence.from_trace.nesting import Nested
from tdiag.evidence.from_trace.sorted_events import Rows, TraceView
from tdiag.evidence.from_trace.window import TracedWindow
from tdiag.trace.columns import Mask

# A call of a compiled function; without the compilation's number before torch 2.5.
REGION = re.compile(r"^Torch-Compiled Region(?:: (\S+))?")
# A graph runs: any that AOTAutograd made with gradients, or inductor. The "eager" back end, and
# graphs without gradients of the "aot_eager" back end, leave no such mark.
GRAPH = re.compile(r"^(CompiledFunction(Backward)?$|## Call CompiledFxGraph |CompiledFxGraph)")
GUARDS = re.compile(r"^TorchDynamo Cache Lookup")
# Events around a graph or an op; their own time is not part of it.
AROUND = re.compile(
    r"^(Torch-Compiled Region|TorchDynamo Cache Lookup|Pregraph bytecode|AOTDispatcher Runtime|"
    r"autograd::engine::evaluate_function: )"
)


def compiled_regions(
    view: TraceView, nested: Nested, window: TracedWindow
) -> CompiledRegions | None:
    """``nested``: the window's ops. None if no compiled code ran or events are missing."""
    named, rows = view.trace.named, nested.rows
    region, graph = named(rows, REGION.match), named(rows, GRAPH.match)
    if window.sampled or not (region.any() or graph.any()):
        return None
    steps = window.count
    length = nested.end - nested.start
    in_graph, in_region = within(nested, graph), within(nested, region)
    outermost = np.flatnonzero(graph & ~_of_parent(nested, in_graph))
    op = ~in_graph & ~named(rows, AROUND.match)
    marked = len(outermost) > 0
    return CompiledRegions(
        entered=_by_number(view, nested, np.flatnonzero(region), None, steps),
        gap_ns=_gaps(view, nested, np.flatnonzero(region), outermost, steps) if marked else {},
        graphs_ns=float(length[outermost].sum()) / steps if marked else None,
        broken_ns=float(nested.self_ns[op & in_region].sum()) / steps if marked else None,
        eager_ns=float(nested.self_ns[op & ~in_region].sum()) / steps if marked else None,
        guards_ns=float(length[named(rows, GUARDS.match)].sum()) / steps,
    )


def within(nested: Nested, mask: Mask) -> Mask:
    """The events of ``mask`` and all that run inside them."""
    found = mask.copy()
    while not np.array_equal(more := found | _of_parent(nested, found), found):
        found = more
    return found


def _of_parent(nested: Nested, mask: Mask) -> Mask:
    inside: Mask = (nested.parent >= 0) & mask[nested.parent]
    return inside


def _gaps(
    view: TraceView, nested: Nested, regions: Rows, graphs: Rows, steps: int
) -> dict[str, float]:
    """For regions inside another region: from the end of the last graph before it on its thread, or
    from the start of the enclosing region if that is later, to the region's start."""
    around = nested.parent[regions]
    is_region = np.zeros(len(nested.rows), np.bool_)
    is_region[regions] = True
    while (other := (around >= 0) & ~is_region[around]).any():
        around[other] = nested.parent[around[other]]
    inner, around = regions[around >= 0], around[around >= 0]
    key = nested.axis.key
    ends = np.sort(key(nested.lane[graphs], nested.end[graphs]))
    begins = key(nested.lane[inner], nested.start[inner])
    last = np.searchsorted(ends, begins, side="right") - 1
    since = np.maximum(
        np.where(last >= 0, ends[last], 0), key(nested.lane[around], nested.start[around])
    )
    return _by_number(view, nested, inner, begins - since, steps)


def _by_number(
    view: TraceView, nested: Nested, regions: Rows, weights: Ints | None, steps: int
) -> dict[str, float]:
    """``weights``, or counts if None, per step by compilation number; "" if unnumbered."""
    names = view.trace.name[nested.rows[regions]]
    totals = np.bincount(names, weights, len(view.trace.names))
    found: dict[str, float] = {}
    for i in np.unique(names).tolist():
        match = REGION.match(view.trace.names[i])
        number = (match[1] or "") if match else ""
        found[number] = found.get(number, 0.0) + float(totals[i]) / steps
    return found
