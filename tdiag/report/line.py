"""The verdict on one line, for ``--quiet`` and logs."""

from __future__ import annotations

from tdiag.diagnose.model import Diagnosis
from tdiag.report.page import Page
from tdiag.report.terminal_findings import best
from tdiag.report.text import inert, relative
from tdiag.report.units import duration, faster, percent
from tdiag.report.words import verdict_class


def render(diagnosis: Diagnosis, page: Page) -> str:
    """E.g. ``Storage-bound: 62% of 50.1 ms a step; best fix 1.6–2.1× faster at train.py:41``.

    One line whatever it holds; the width is not kept, so that a log can be searched.
    """
    verdict = diagnosis.verdict
    if verdict.cls in ("unknown", "no_device_activity") or diagnosis.step is None:
        return f"{inert(verdict_class(verdict.cls))}: {inert(verdict.summary)}\n"
    state = "healthy, " if verdict.healthy else ""
    share = f"{state}{percent(verdict.share)} of {duration(diagnosis.step.mean_ns)} a step"
    line = f"{inert(verdict_class(verdict.cls))}: {share}"
    fix = None if verdict.healthy else best(diagnosis)
    if fix and fix.speedup:
        line += f"; best fix {faster(fix.speedup.low, fix.speedup.high)} faster"
        if fix.location:
            place = inert(relative(fix.location.file, page.base_dir))
            line += f" at {place}" + (f":{fix.location.line}" if fix.location.line else "")
    return line + "\n"
