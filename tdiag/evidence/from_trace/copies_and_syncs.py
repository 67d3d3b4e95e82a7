"""Copies between host and device, synchronisations and the idle time they cause, allocations."""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from tdiag.evidence.device import Copy, Sync, Syncs, Transfers
from tdiag.evidence.from_trace.device_time import ITEM, Idle
from tdiag.evidence.from_trace.intervals import Ints, Spans, clip, minus, total
from tdiag.evidence.from_trace.nesting import Nested, nest
from tdiag.evidence.from_trace.python_stacks import PythonStacks
from tdiag.evidence.from_trace.sorted_events import COMPUTE, D2H, H2D, Rows, TraceView
from tdiag.evidence.from_trace.window import TracedWindow
from tdiag.evidence.memory import AllocatorCalls
from tdiag.model.place import Place

MEMORY_WORDS = {
    "pageable": re.compile(r"Pageable|\((M2D|D2M)\)", re.IGNORECASE),
    "pinned": re.compile(r"Pinned|ze\w+Copy\((H2D|D2H)\)", re.IGNORECASE),
}
MALLOC = re.compile(r"^(cuda|hip)Malloc$")
FREE = re.compile(r"^(cuda|hip)Free$")
LAUNCHES, MALLOCS, FREES = range(3)


def transfers(view: TraceView, window: TracedWindow, stacks: PythonStacks) -> Transfers:
    """One entry per direction, kind of host memory (``unknown`` if the name does not say, as in
    ROCm's "Host -> Device") and user function."""
    compute = view.spans(view.of_kind(COMPUTE))
    copies = []
    for kind, direction in ((H2D, "h2d"), (D2H, "d2h")):
        rows = view.of_kind(kind)
        start = view.trace.ts_ns[rows]
        rows = rows[(start < window.end) & (view.trace.ends(rows) > window.begin)]
        memories = [memory_kind(view.trace.names[name]) for name in view.trace.name[rows]]
        groups: dict[tuple[str, Place | None], list[int]] = {}
        for index, key in enumerate(zip(memories, _places(view, stacks, rows), strict=True)):
            groups.setdefault(key, []).append(index)
        copies += [
            _copy(view, window, rows[mine], direction, memory, at, compute)
            for (memory, at), mine in groups.items()
        ]
    copies.sort(key=lambda copy: -copy.exposed_ns)
    return Transfers(copies=tuple(copies))


@cache
def memory_kind(name: str) -> str:
    """The kind of host memory that a copy's name gives."""
    return next((memory for memory, words in MEMORY_WORDS.items() if words.search(name)), "unknown")


def _places(view: TraceView, stacks: PythonStacks, rows: Rows) -> list[Place | None]:
    """The code location of the call that issued each copy."""
    calls = view.launched_by(rows)
    known = np.flatnonzero(calls >= 0)
    found: list[Place | None] = [None] * len(rows)
    places, place = stacks.locate(calls[known])
    for index, at in zip(known.tolist(), place.tolist(), strict=True):
        found[index] = places[at]
    return found


def _copy(
    view: TraceView,
    window: TracedWindow,
    rows: Rows,
    direction: str,
    memory: str,
    at: Place | None,
    compute: Spans,
) -> Copy:
    trace, steps = view.trace, window.count
    spans = clip(view.spans(rows), window.begin, window.end)
    sizes = trace.bytes[rows]
    calls = view.launched_by(rows)
    return Copy(
        direction=direction,
        memory=memory,
        count=len(rows) / steps,
        bytes=int(sizes.sum()) / steps if (sizes >= 0).all() else None,
        device_ns=total(spans) / steps,
        exposed_ns=total(minus(spans, compute)) / steps,
        host_blocked_ns=float(trace.dur_ns[calls[calls >= 0]].sum()) / steps,
        at=at,
    )


def syncs(
    view: TraceView, window: TracedWindow, idle: Idle, ops: Nested, stacks: PythonStacks
) -> Syncs:
    """By name, user function, ops and annotation: runtime calls, and the ``aten::item`` that asked
    for a value."""
    around = _Around(view, ops, stacks)
    found = _grouped(view, around, idle.calls, idle.caused, window)
    items = window.began(view, view.matching(view.ops, ITEM))
    starts = view.trace.ts_ns[idle.calls]
    before = np.r_[0, np.cumsum(idle.caused)]
    first = np.searchsorted(starts, view.trace.ts_ns[items])
    last = np.searchsorted(starts, view.trace.ends(items))
    waited = last > first  # reading a value already on the host makes no blocking call
    caused = (before[last] - before[first])[waited]
    found += _grouped(view, around, items[waited], caused, window)
    found.sort(key=lambda sync: -(sync.idle_after_ns + sync.host_ns))
    return Syncs(syncs=tuple(found))


# torch's own annotations; all others are record_function calls of the user or a framework.
TORCHS_OWN = re.compile(r"^(ProfilerStep#|enumerate\(DataLoader\)|Optimizer\.|nccl:|record_param)")


class _Around:
    """What encloses a call: the user's function, ops, an annotation."""

    def __init__(self, view: TraceView, ops: Nested, stacks: PythonStacks) -> None:
        self._view, self._ops, self._stacks = view, ops, stacks
        names = view.annotations
        self._notes = nest(view.trace, names[~view.trace.named(names, TORCHS_OWN.match)])

    def of(self, rows: Rows) -> list[tuple[Place | None, str, str]]:
        trace = self._view.trace
        lane, moment = trace.lane[rows].astype(np.int64), trace.ts_ns[rows]
        places, place = self._stacks.locate(rows)
        inner = self._ops.around(lane, moment)
        outer = inner.copy()
        while len(up := np.flatnonzero(outer >= 0)):
            up = up[self._ops.parent[outer[up]] >= 0]
            if not len(up):
                break
            outer[up] = self._ops.parent[outer[up]]
        note = self._notes.around(lane, moment)
        found = []
        for p, i, o, n in zip(place.tolist(), inner, outer, note, strict=True):
            ends = [trace.names[trace.name[self._ops.rows[at]]] for at in (o, i) if at >= 0]
            within = trace.names[trace.name[self._notes.rows[n]]] if n >= 0 else ""
            found.append((places[p], " > ".join(dict.fromkeys(ends)), within))
        return found


def _grouped(
    view: TraceView, around: _Around, rows: Rows, caused: Ints, window: TracedWindow
) -> list[Sync]:
    names = [view.trace.names[name] for name in view.trace.name[rows]]
    groups: dict[tuple[str, Place | None, str, str], list[int]] = {}
    for index, (name, known) in enumerate(zip(names, around.of(rows), strict=True)):
        groups.setdefault((name, *known), []).append(index)
    host = view.trace.dur_ns[rows]
    return [
        Sync(
            name=name,
            count=len(mine) / window.count,
            host_ns=float(host[mine].sum()) / window.count,
            idle_after_ns=float(caused[mine].sum()) / window.count,
            at=at,
            op=op,
            within=within,
        )
        for (name, at, op, within), mine in groups.items()
    ]


def allocator_calls(view: TraceView, window: TracedWindow) -> AllocatorCalls | None:
    """Allocation calls for device memory; a warm caching allocator makes none. None if no runtime
    calls were traced."""
    if not len(view.runtime):
        return None
    trace = view.trace
    kinds = [view.launch[view.launch >= 0]]
    kinds += [view.matching(view.runtime, pattern) for pattern in (MALLOC, FREE)]
    kinds = [np.unique(window.began(view, rows)) for rows in kinds]
    rows = np.concatenate(kinds)
    kind = np.repeat([LAUNCHES, MALLOCS, FREES], [len(rows) for rows in kinds])
    kind = kind[np.argsort(trace.ts_ns[rows], kind="stable")]
    first = np.flatnonzero(np.diff(kind, prepend=-1))  # starts of runs of one kind of call
    runs = kind[first]
    retried = (runs[:-2] == MALLOCS) & (runs[1:-1] == FREES) & (runs[2:] == MALLOCS)
    spent = trace.dur_ns[rows[len(kinds[LAUNCHES]) :]].sum()
    return AllocatorCalls(
        mallocs=len(kinds[MALLOCS]) / window.count,
        frees=len(kinds[FREES]) / window.count,
        retries=int(retried.sum()) / window.count,
        host_ns=float(spent) / window.count,
    )
