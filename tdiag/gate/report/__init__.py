"""Reports of a check: one file a format, each ``render(outcome, page) -> str``. Adding one is its
file and its line in ``FORMATS``."""

from __future__ import annotations

from collections.abc import Callable

from tdiag.errors import UsageError
from tdiag.gate.outcome import Outcome
from tdiag.gate.report import github, json, junit, line, markdown, sarif, terminal
from tdiag.report.page import Page

__all__ = ["FORMATS", "render"]

FORMATS: dict[str, Callable[[Outcome, Page], str]] = {
    "terminal": terminal.render,
    "json": json.render,
    "line": line.render,
    "markdown": markdown.render,
    "sarif": sarif.render,
    "junit": junit.render,
    "github": github.render,
}


def render(format: str, outcome: Outcome, page: Page) -> str:
    """The outcome in one of ``FORMATS``, ending with a newline. Raises UsageError for others."""
    if format not in FORMATS:
        raise UsageError(f"no report format {format!r}", f"there are: {', '.join(FORMATS)}")
    return FORMATS[format](outcome, page)
