"""What the host did, as sets of instants: for the time in which the device is idle."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tdiag.evidence.from_trace.host_ops import Phase
from tdiag.evidence.from_trace.intervals import NOTHING, Spans, both, merged, minus, union
from tdiag.evidence.from_trace.steps import NEXT_BATCH, OPTIMIZER_STEP, Window
from tdiag.evidence.from_trace.view import D2H, Rows, View

# Calls that return only when the device has got somewhere: CUDA, HIP, Level Zero, MTIA.
SYNC_CALL = re.compile(r"(Stream|Device|Event|Ctx)Synchronize|^ze\w+Synchronize|^synchronize")
ITEM = re.compile(r"^aten::item$")
ALLOCATION = re.compile(r"^(cuda|hip|cu)(Host)?(Mem)?(Malloc|Alloc|Free)", re.IGNORECASE)

# An instant has one state: the first of these that holds.
STATES = ("data_wait", "alloc", "sync", "python_loss", "evaluation", "optimizer", "launch")
OF_PHASE = {"data_wait": "data_wait", "loss": "python_loss", "evaluation": "evaluation"}


def blocking_calls(view: View, window: Window) -> Rows:
    """Runtime calls that wait for the device: synchronisations, and copies to the host that
    last until the copy itself has ended (from pageable memory: a synchronisation in disguise).

    Only those of the host's own steps: the profiler synchronises when it stops.
    """
    syncs = view.matching(view.runtime, SYNC_CALL)
    copied = (view.work_kind == D2H) & (view.launch >= 0)
    calls, copies = view.launch[copied], view.work[copied]
    waited = view.trace.ends(calls) >= view.trace.ends(copies)
    rows: Rows = np.union1d(syncs, calls[waited])
    start = view.trace.ts_ns[rows]
    inside: Rows = rows[(start >= window.begin) & (start < window.host_end)]
    return inside


def host_states(view: View, window: Window, phases: Sequence[Phase]) -> dict[str, Spans]:
    """Disjoint sets of instants by state, on any thread of the traced process."""
    raw = {
        "data_wait": view.spans(view.matching(view.annotations, NEXT_BATCH)),
        "alloc": view.spans(view.matching(view.runtime, ALLOCATION)),
        "sync": view.spans(blocking_calls(view, window)),
        "optimizer": view.spans(view.matching(view.annotations, OPTIMIZER_STEP)),
        "launch": merged(view.spans(view.ops), view.spans(view.runtime)),
    }
    for phase, state in OF_PHASE.items():
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


def split(spans: Spans, states: dict[str, Spans]) -> dict[str, Spans]:
    """``spans`` by host state; what no state covers is ``other``."""
    parts = {state: both(spans, covered) for state, covered in states.items()}
    rest = minus(spans, merged(*states.values()))
    return {name: part for name, part in (parts | {"other": rest}).items() if len(part)}
