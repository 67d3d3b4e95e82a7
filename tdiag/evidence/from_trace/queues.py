"""Device work in order of issue, and what each kernel or copy waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tdiag.evidence.from_trace.copies_and_syncs import memory_kind
from tdiag.evidence.from_trace.device_work import (
    MATRIX_FAMILIES,
    TENSOR_CORE,
    family_of,
    is_float32,
)
from tdiag.evidence.from_trace.intervals import Ints, Mask
from tdiag.evidence.from_trace.sorted_events import COMM, D2H, H2D, Rows, TraceView, queue_of
from tdiag.evidence.replay import NONE

# Launching takes 5 to 10 µs; work that begins or returns this much later waited for something else.
NEAR_NS = 20_000
CLOCK_NS = 2_000  # tolerance between host and device clocks where one event ends another's wait
LOOK_BACK = 16  # number of preceding ends searched for the one that a start waited for


@dataclass(frozen=True)
class Queues:
    """``rows`` of work in order of issue, all times relative to ``origin``. ``call``: index of the
    call that issued it, −1 if queued earlier. ``after``, ``joins``: indices of work, −1 = none.
    ``unexplained_ns``: waiting without a reason in the trace."""

    rows: Rows
    call: Ints
    stream: Ints
    begin: Ints
    end: Ints
    after: Ints
    joins: Ints
    lag: Ints
    latency_ns: int
    gap_ns: int
    unexplained_ns: int


def queues(
    view: TraceView, rows: Rows, call: Ints, called: Ints, returned: Ints, origin: int
) -> Queues:
    """``call``: of each row, or −1; ``called``, ``returned``: when each call began and ended."""
    order = np.lexsort((view.trace.ts_ns[rows], call))
    rows, call = rows[order], call[order]
    begin, end = view.trace.ts_ns[rows] - origin, view.trace.ends(rows) - origin
    stream = np.unique(queue_of(view.trace, rows), return_inverse=True)[1].astype(np.int64)
    issued = np.where(call >= 0, called[call], 0) if len(called) else np.zeros_like(begin)
    after = _past_concurrent(_before_in_stream(stream), begin, end)
    freed = np.where(after >= 0, end[after], 0)
    own = call >= 0
    latency = _usual((begin - issued)[own & (freed <= issued)])
    gap = _usual((begin - freed)[(after >= 0) & (freed > issued + latency)])
    ready = np.maximum(np.where(own, issued + latency, 0), np.where(after >= 0, freed + gap, 0))
    late = begin - ready > NEAR_NS
    late &= own | (after >= 0)  # the first work of a stream has no start to explain
    within = own & (begin < np.where(own, returned[call], 0)) if len(called) else own
    joins = _joined(late, stream, begin, end)
    ready = np.maximum(ready, np.where(joins >= 0, end[joins], 0))
    unexplained = late & ~within & (joins < 0)
    return Queues(
        rows=rows, call=call, stream=stream, begin=begin, end=end, after=after, joins=joins,
        lag=begin - ready, latency_ns=latency, gap_ns=gap,
        unexplained_ns=int((begin - ready)[unexplained].sum()),
    )  # fmt: skip


def _before_in_stream(stream: Ints) -> Ints:
    """The work before each in its stream, −1 for the first."""
    order = np.argsort(stream, kind="stable")
    before = np.full(len(stream), NONE, np.int64)
    same = stream[order][1:] == stream[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    return before


def _past_concurrent(after: Ints, begin: Ints, end: Ints) -> Ints:
    """``after`` without work that ran at the same time (branches of a CUDA graph): what that came
    after. A kernel may begin shortly before the one before it ends (programmatic dependent launch,
    from Hopper on), and comes after it all the same."""
    after = after.copy()
    for _ in range(LOOK_BACK):
        most = np.maximum(CLOCK_NS, (end - begin)[after] // 2)
        beside = (after >= 0) & (end[after] - begin > most)
        if not beside.any():
            return after
        after[beside] = after[after[beside]]
    after[beside] = NONE
    return after


def _usual(delays: Ints) -> int:
    """The median of the delays that are not waiting."""
    usual = delays[(delays >= 0) & (delays <= NEAR_NS)]
    return int(np.median(usual)) if len(usual) else 0


def _joined(late: Mask, stream: Ints, begin: Ints, end: Ints) -> Ints:
    """For each late piece of work: the work on another stream, issued earlier, at whose end it
    started."""
    joins = np.full(len(begin), NONE, np.int64)
    order = np.argsort(end, kind="stable")
    ends = end[order]
    for number in np.flatnonzero(late).tolist():
        last = int(np.searchsorted(ends, begin[number] + CLOCK_NS, side="right"))
        for other in order[max(0, last - LOOK_BACK) : last][::-1].tolist():
            if begin[number] - end[other] > NEAR_NS:
                break
            if other < number and stream[other] != stream[number]:
                joins[number] = other
                break
    return joins


def tags_of(view: TraceView, rows: Rows) -> list[str]:
    """The kind of each row of work, as :class:`Replay` names it."""
    kinds = view.work_kind[np.searchsorted(view.work, rows)].tolist()
    names = view.trace.name[rows].tolist()
    known: dict[tuple[int, int], str] = {}
    for key in zip(kinds, names, strict=True):
        if key not in known:
            known[key] = _tag(key[0], view.trace.names[key[1]])
    return [known[key] for key in zip(kinds, names, strict=True)]


def _tag(kind: int, name: str) -> str:
    if kind in (H2D, D2H):
        return f"{'h2d' if kind == H2D else 'd2h'} {memory_kind(name)}"
    if kind == COMM:
        return "comm"
    family = family_of(name)
    plain = family in MATRIX_FAMILIES and is_float32(name) and not TENSOR_CORE.search(name)
    return f"{family} float32" if plain else family
