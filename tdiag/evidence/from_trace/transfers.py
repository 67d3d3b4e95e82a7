"""Copies between host and device."""

from __future__ import annotations

import re

import numpy as np

from tdiag.evidence.device import Copy, Transfers
from tdiag.evidence.from_trace.intervals import Spans, clip, minus, total
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.view import COMPUTE, D2H, H2D, Rows, View

MEMORY_WORDS = {
    "pageable": re.compile("Pageable", re.IGNORECASE),
    "pinned": re.compile("Pinned", re.IGNORECASE),
}


def transfers(view: View, window: Window) -> Transfers:
    """One entry per direction and kind of host memory; ``unknown`` where the name does not say
    (ROCm's "Host -> Device")."""
    compute = view.spans(view.of_kind(COMPUTE))
    copies = []
    for kind, direction in ((H2D, "h2d"), (D2H, "d2h")):
        rows = view.of_kind(kind)
        start = view.trace.ts_ns[rows]
        rows = rows[(start < window.end) & (view.trace.end_ns[rows] > window.begin)]
        rest = np.ones(len(rows), np.bool_)
        for memory, words in MEMORY_WORDS.items():
            mine = view.trace.named(words.search)[view.trace.name[rows]] & rest
            rest &= ~mine
            copies.append(_copy(view, window, rows[mine], direction, memory, compute))
        copies.append(_copy(view, window, rows[rest], direction, "unknown", compute))
    return Transfers(copies=tuple(copy for copy in copies if copy is not None))


def _copy(
    view: View, window: Window, rows: Rows, direction: str, memory: str, compute: Spans
) -> Copy | None:
    if not len(rows):
        return None
    trace, steps = view.trace, window.count
    spans = clip(view.spans(rows), window.begin, window.end)
    sizes = trace.bytes[rows]
    calls = view.launch[np.isin(view.work, rows)]
    return Copy(
        direction=direction,
        memory=memory,
        count=len(rows) / steps,
        bytes=int(sizes.sum()) / steps if (sizes >= 0).all() else None,
        device_ns=total(spans) / steps,
        exposed_ns=total(minus(spans, compute)) / steps,
        host_blocked_ns=float(trace.dur_ns[calls[calls >= 0]].sum()) / steps,
        at=None,
    )
