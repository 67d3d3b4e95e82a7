"""Batch requests, as torch annotates them, and the functions in which their time was spent."""

from __future__ import annotations

import numpy as np

from tdiag.evidence.feeding import FetchPart, TracedFetches
from tdiag.evidence.from_trace.intervals import covered
from tdiag.evidence.from_trace.nesting import nest
from tdiag.evidence.from_trace.python_stacks import FRAME, PythonStacks, python_functions
from tdiag.evidence.from_trace.sorted_events import Rows, TraceView
from tdiag.evidence.from_trace.window import NEXT_BATCH, TracedWindow

TOP_PARTS = 3  # the number a finding lists
SINGLE, MULTI = "SingleProcess", "MultiProcess"  # in the names of torch's two iterators


def traced_fetches(
    view: TraceView, window: TracedWindow, stacks: PythonStacks
) -> TracedFetches | None:
    """None if the traced steps hold no annotated batch request."""
    trace = view.trace
    rows = window.began(view, view.matching(view.annotations, NEXT_BATCH))
    if not len(rows):
        return None
    names = {trace.names[name] for name in trace.name[rows].tolist()}
    single, multi = (any(kind in name for name in names) for kind in (SINGLE, MULTI))
    return TracedFetches(
        workers=multi if single != multi else None,
        count=len(rows) / window.count,
        wall_ns=float(trace.dur_ns[rows].sum()) / window.count,
        parts=_parts(view, rows, window.count, stacks),
    )


def _parts(
    view: TraceView, fetches: Rows, steps: int, stacks: PythonStacks
) -> tuple[FetchPart, ...]:
    """Python functions by self time (no other Python function running), longest first. Non-Python
    code that a function calls (NumPy, a decoder) counts as part of it."""
    trace = view.trace
    python = python_functions(trace)
    python = python[np.isin(trace.lane[python], trace.lane[fetches])]
    python = python[trace.named(python, FRAME.match)]
    inside = covered(view.spans(fetches), trace.ts_ns[python], trace.ts_ns[python] + 1) > 0
    nested = nest(trace, python[inside])
    spent = np.bincount(trace.name[nested.rows], nested.self_ns, len(trace.names))
    found = []
    for name in np.argsort(-spent, kind="stable")[:TOP_PARTS].tolist():
        if not spent[name]:
            break
        mine = trace.name[nested.rows] == name
        longest = nested.rows[mine][[int(np.argmax(nested.self_ns[mine]))]]
        places, place = stacks.locate(longest)
        frame = FRAME.match(trace.names[name])
        assert frame is not None
        found.append(
            FetchPart(
                name=f"{frame['function']} ({frame['file']})",
                ns=float(spent[name]) / steps,
                at=places[int(place[0])],
            )
        )
    return tuple(found)
