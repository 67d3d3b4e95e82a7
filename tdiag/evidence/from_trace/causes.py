"""Device idle time by cause: what the host did meanwhile, or what had cost it its lead before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tdiag.evidence.from_trace.host_states import blocking_calls, split
from tdiag.evidence.from_trace.intervals import NOTHING, Ints, Spans, clip, covered, gaps, total
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.view import Rows, View

# Waiting costs the host its lead over the device; idle in these states has its cause already.
WAITING = ("sync", "data_wait")
OWN_CAUSE = frozenset({*WAITING, "alloc"})


@dataclass(frozen=True)
class Idle:
    """``by_cause``: idle ns of the window by host state, adding up to the idle time exactly.
    ``calls``: the blocking calls; ``caused``: device idle that each of them caused, ns."""

    by_cause: dict[str, int]
    calls: Rows
    caused: Ints


def idle_causes(view: View, window: Window, busy: Spans, states: dict[str, Spans]) -> Idle:
    """Attribute every idle instant of the window to one cause.

    A wait makes idle what follows it, too: had the host not waited, it would be ahead by as long
    as the device worked meanwhile. Later gaps are charged to the most recent wait whose lead is
    not used up: a replay of the device queue with the waits removed, in one pass. So a wait for
    a device that never runs dry costs nothing, and a short wait explains no long gap.
    """
    idle = gaps(busy, window.begin, window.end)
    parts = split(idle, states)
    totals = {name: total(spans) for name, spans in parts.items()}
    waits = {name: clip(states.get(name, NOTHING), window.begin, window.end) for name in WAITING}
    spans = np.concatenate(list(waits.values()))
    if not len(spans):
        return Idle(totals, NOTHING[:, 0], NOTHING[:, 0])
    names = [name for name in parts if name not in OWN_CAUSE]
    pieces = np.concatenate([NOTHING, *(parts[name] for name in names)])
    owner = np.repeat(np.arange(len(names)), [len(parts[name]) for name in names])
    worked = covered(busy, spans[:, 0], spans[:, 1])
    used, met = charge(spans[:, 1], worked, pieces[:, 0], pieces[:, 1] - pieces[:, 0])
    for index, name in enumerate(names):
        totals[name] -= int(met[owner == index].sum())
    first = 0
    for name, mine in waits.items():
        totals[name] = totals.get(name, 0) + int(used[first : first + len(mine)].sum())
        first += len(mine)
    syncs = waits["sync"]
    caused = used[: len(syncs)] + (syncs[:, 1] - syncs[:, 0]) - worked[: len(syncs)]
    return Idle(totals, *_by_call(view, window, syncs, caused))


def _by_call(view: View, window: Window, syncs: Spans, caused: Ints) -> tuple[Rows, Ints]:
    """Blocking calls with the idle of the stretch of waiting that they begin."""
    calls = blocking_calls(view, window)
    calls = calls[np.lexsort((-view.trace.dur_ns[calls], view.trace.ts_ns[calls]))]
    per_call = np.zeros(len(calls), np.int64)
    at = np.searchsorted(view.trace.ts_ns[calls], syncs[:, 0])
    known = at < len(calls)
    # Pieces of one call, cut by another state, are added up.
    np.add.at(per_call, at[known], caused[known])
    return calls, per_call


def charge(ends: Ints, lead: Ints, begins: Ints, demand: Ints) -> tuple[Ints, Ints]:
    """Charge each demand to the latest leads before it: ``(used of each lead, met of each
    demand)``. Leads become available at ``ends``, demands arise at ``begins``.

    Leads lie on one another like a stack: of each that is left which the stack never sank below
    again.
    """
    count = len(ends)
    order = np.argsort(np.r_[ends, begins], kind="stable")
    won = np.r_[lead, np.zeros_like(demand)][order]
    wanted = np.cumsum(np.r_[np.zeros_like(lead), demand][order])
    unmet = np.maximum.accumulate(np.maximum(wanted - np.cumsum(won), 0))
    met = np.diff(wanted - unmet, prepend=0)
    height = np.cumsum(won - met)
    lowest = np.minimum.accumulate(height[::-1])[::-1]  # from here on
    used = won - np.clip(lowest - (height - won), 0, won)
    both = np.empty(len(order), np.int64)
    both[order] = used + met  # one of the two is 0
    return both[:count], both[count:]
