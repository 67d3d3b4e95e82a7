"""Collectives and point-to-point traffic between devices."""

from __future__ import annotations

from tdiag.evidence.device import Communication
from tdiag.evidence.from_trace.intervals import clip, minus, total
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.view import COMM, COMPUTE, View


def communication(view: View, window: Window) -> Communication | None:
    """None if no communication ran on the device."""
    rows = view.of_kind(COMM)
    spans = clip(view.spans(rows), window.begin, window.end)
    if not len(spans):
        return None
    return Communication(
        total_ns=total(spans) / window.count,
        exposed_ns=total(minus(spans, view.spans(view.of_kind(COMPUTE)))) / window.count,
        count=len(window.began(view, rows)) / window.count,
    )
