"""Calls for device memory, which a warm caching allocator does not make."""

from __future__ import annotations

import re

import numpy as np

from tdiag.evidence.from_trace.sorted_events import TraceView
from tdiag.evidence.from_trace.window import TracedWindow
from tdiag.evidence.memory import AllocatorCalls

MALLOC = re.compile(r"^(cuda|hip)Malloc$")
FREE = re.compile(r"^(cuda|hip)Free$")
LAUNCHES, MALLOCS, FREES = range(3)


def allocator_calls(view: TraceView, window: TracedWindow) -> AllocatorCalls | None:
    """None where no runtime calls were traced."""
    if not len(view.runtime):
        return None
    trace = view.trace
    kinds = [view.launch[view.launch >= 0]]
    kinds += [view.matching(view.runtime, pattern) for pattern in (MALLOC, FREE)]
    kinds = [np.unique(window.began(view, rows)) for rows in kinds]
    rows = np.concatenate(kinds)
    kind = np.repeat([LAUNCHES, MALLOCS, FREES], [len(rows) for rows in kinds])
    kind = kind[np.argsort(trace.ts_ns[rows], kind="stable")]
    first = np.flatnonzero(np.diff(kind, prepend=-1))  # of each stretch of calls of one kind
    runs = kind[first]
    retried = (runs[:-2] == MALLOCS) & (runs[1:-1] == FREES) & (runs[2:] == MALLOCS)
    spent = trace.dur_ns[rows[len(kinds[LAUNCHES]) :]].sum()
    return AllocatorCalls(
        mallocs=len(kinds[MALLOCS]) / window.count,
        frees=len(kinds[FREES]) / window.count,
        retries=int(retried.sum()) / window.count,
        host_ns=float(spent) / window.count,
    )
