"""Synchronisations, and the device idle time that each causes."""

from __future__ import annotations

import numpy as np

from tdiag.evidence.device import Sync, Syncs
from tdiag.evidence.from_trace.causes import Idle
from tdiag.evidence.from_trace.host_states import ITEM
from tdiag.evidence.from_trace.intervals import Ints
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.view import View


def syncs(view: View, window: Window, idle: Idle) -> Syncs:
    """By name of the runtime call, and ``aten::item`` for the op that asked for a value."""
    trace = view.trace
    names = trace.name[idle.calls]
    found = [
        _sync(trace.names[name], trace.dur_ns[idle.calls][names == name],
              idle.caused[names == name], window.count)
        for name in np.unique(names)
    ]  # fmt: skip
    items = window.began(view, view.matching(view.ops, ITEM))
    # A value that was on the host already makes no call that waits.
    begins = np.sort(trace.ts_ns[idle.calls])
    caused_before = np.r_[0, np.cumsum(idle.caused[np.argsort(trace.ts_ns[idle.calls])])]
    first = np.searchsorted(begins, trace.ts_ns[items])
    last = np.searchsorted(begins, trace.end_ns[items])
    waited = last > first
    if waited.any():
        caused = (caused_before[last] - caused_before[first])[waited]
        found.append(_sync("aten::item", trace.dur_ns[items][waited], caused, window.count))
    found.sort(key=lambda sync: -(sync.idle_after_ns + sync.host_ns))
    return Syncs(syncs=tuple(found))


def _sync(name: str, host: Ints, caused: Ints, steps: int) -> Sync:
    return Sync(
        name=name,
        count=len(host) / steps,
        host_ns=float(host.sum()) / steps,
        idle_after_ns=float(caused.sum()) / steps,
        at=None,
    )
