"""Collectives and point-to-point traffic between devices."""

from __future__ import annotations

import numpy as np

from tdiag.evidence.device import Communication
from tdiag.evidence.from_trace.intervals import clip, covered, minus, total
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.view import COMM, COMPUTE, View

MOST = 10_000  # collectives that are told one by one, as documented at Communication


def communication(view: View, window: Window) -> Communication | None:
    """None if no communication ran on the device."""
    trace = view.trace
    rows = view.of_kind(COMM)
    spans = clip(view.spans(rows), window.begin, window.end)
    if not len(spans):
        return None
    exposed = minus(spans, view.spans(view.of_kind(COMPUTE)))
    began = window.began(view, rows)
    each = began[np.argsort(trace.ts_ns[began], kind="stable")]
    start, end = trace.ts_ns[each], trace.ends(each)
    told = zip(end.tolist(), covered(exposed, start, end).tolist(), strict=True)
    return Communication(
        total_ns=total(spans) / window.count,
        exposed_ns=total(exposed) / window.count,
        count=len(began) / window.count,
        collectives=tuple(told) if len(each) <= MOST else (),
    )
