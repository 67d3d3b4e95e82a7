"""The verdict on one line, for ``--quiet`` and logs."""

from __future__ import annotations

from tdiag.model.diagnosis import Diagnosis
from tdiag.report.page import Page
from tdiag.report.summary import best, headline
from tdiag.report.text import inert, spot
from tdiag.units import duration, faster


def render(diagnosis: Diagnosis, page: Page) -> str:
    """E.g. ``I/O-bound: 62% of the step (50.1 ms); best fix 1.6–2.1× faster at train.py:41``.

    One line whatever it holds; the width is not kept, so that a log can be searched.
    """
    title, share = headline(diagnosis.verdict)
    if not share or diagnosis.step is None:
        return f"{title}: {inert(diagnosis.verdict.summary)}\n"
    line = f"{title}: {share} ({duration(diagnosis.step.mean_ns)})"
    fix = best(diagnosis)
    if fix and fix.speedup:
        line += f"; best fix {faster(fix.speedup.low, fix.speedup.high)} faster"
        if fix.location:
            line += f" at {spot(fix.location, page.base_dir)}"
    return line + "\n"
