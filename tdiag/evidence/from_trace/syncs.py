"""Synchronisations, and the device idle time that each causes."""

from __future__ import annotations

import numpy as np

from tdiag.evidence.device import Sync, Syncs
from tdiag.evidence.from_trace.causes import Idle
from tdiag.evidence.from_trace.host_states import ITEM
from tdiag.evidence.from_trace.intervals import Ints
from tdiag.evidence.from_trace.stacks import Stacks
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.view import Rows, View
from tdiag.model.place import Place


def syncs(view: View, window: Window, idle: Idle, stacks: Stacks) -> Syncs:
    """By name and user function: the runtime calls, and ``aten::item`` that asked for a value."""
    found = _grouped(view, stacks, idle.calls, idle.caused, window)
    items = window.began(view, view.matching(view.ops, ITEM))
    starts = view.trace.ts_ns[idle.calls]
    before = np.r_[0, np.cumsum(idle.caused)]
    first = np.searchsorted(starts, view.trace.ts_ns[items])
    last = np.searchsorted(starts, view.trace.ends(items))
    waited = last > first  # a value that was on the host already makes no call that waits
    caused = (before[last] - before[first])[waited]
    found += _grouped(view, stacks, items[waited], caused, window)
    found.sort(key=lambda sync: -(sync.idle_after_ns + sync.host_ns))
    return Syncs(syncs=tuple(found))


def _grouped(view: View, stacks: Stacks, rows: Rows, caused: Ints, window: Window) -> list[Sync]:
    names = [view.trace.names[name] for name in view.trace.name[rows]]
    groups: dict[tuple[str, Place | None], list[int]] = {}
    places, place = stacks.locate(rows)
    for index, (name, at) in enumerate(zip(names, place.tolist(), strict=True)):
        groups.setdefault((name, places[at]), []).append(index)
    host = view.trace.dur_ns[rows]
    return [
        _sync(name, at, host[mine], caused[mine], window.count)
        for (name, at), mine in groups.items()
    ]


def _sync(name: str, at: Place | None, host: Ints, caused: Ints, steps: int) -> Sync:
    return Sync(
        name=name,
        count=len(host) / steps,
        host_ns=float(host.sum()) / steps,
        idle_after_ns=float(caused.sum()) / steps,
        at=at,
    )
