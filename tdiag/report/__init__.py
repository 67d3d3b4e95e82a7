"""Reports: one :class:`~tdiag.report.document.Document`, one file per format.

Each format is ``render(document, page) -> str`` and renders every document. A new format is a file
and a line in ``FORMATS``."""

from __future__ import annotations

from collections.abc import Callable

from tdiag.errors import UsageError
from tdiag.report import github, html, json, junit, line, markdown, sarif, terminal
from tdiag.report.document import Document
from tdiag.report.page import Page

FORMATS: dict[str, Callable[[Document, Page], str]] = {
    "terminal": terminal.render,
    "json": json.render,
    "line": line.render,
    "markdown": markdown.render,
    "sarif": sarif.render,
    "junit": junit.render,
    "github": github.render,
    "html": html.render,
}


def check_format(name: str) -> None:
    """Raises :class:`UsageError` if the format does not exist."""
    if name not in FORMATS:
        raise UsageError(f"no report format {name!r}", f"there are: {', '.join(FORMATS)}")


def render(format: str, document: Document, page: Page | None = None) -> str:
    """The document in one of ``FORMATS``, ending with a newline. Raises UsageError for other
    names."""
    check_format(format)
    return FORMATS[format](document, page or Page())
