"""Reports of a history: one file a format, each ``render(series, page) -> str``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tdiag.gate.history import Series
from tdiag.gate.report.history import html, json, terminal
from tdiag.report.page import Page

__all__ = ["FORMATS"]

FORMATS: dict[str, Callable[[Sequence[Series], Page], str]] = {
    "terminal": terminal.render,
    "html": html.render,
    "json": json.render,
}
