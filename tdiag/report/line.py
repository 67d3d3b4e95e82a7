"""The headline on one line, for ``--quiet`` and logs."""

from __future__ import annotations

from tdiag.report.document import Document
from tdiag.report.page import Page
from tdiag.report.text import inert, spot


def render(document: Document, page: Page) -> str:
    """E.g. ``I/O-bound: 62% of the step (50.1 ms); best fix 1.6–2.1× faster at train.py:41``.

    Always one line; its width is not limited, so that a log can be searched.
    """
    head = document.headline
    if head is None:
        return inert(document.title) + "\n"
    place = next((line.place for line in head.lines if line.place and line.gain), None)
    at = f" at {spot(place, page.base_dir)}" if place and "; best fix" in head.brief else ""
    return inert(head.brief, 1200) + at + "\n"
