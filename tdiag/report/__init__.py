"""Reports: one file a format, each ``render(diagnosis, page) -> str``. A format reads only the
diagnosis; adding one is its file and its line in ``FORMATS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tdiag.diagnose.details import Details
from tdiag.errors import UsageError
from tdiag.model.diagnosis import Diagnosis
from tdiag.report import github, html, json, junit, line, markdown, sarif, terminal
from tdiag.report.load import load_diagnosis
from tdiag.report.page import Page

__all__ = ["FORMATS", "load_diagnosis", "render"]

FORMATS: dict[str, Callable[[Diagnosis, Page], str]] = {
    "terminal": terminal.render,
    "json": json.render,
    "line": line.render,
    "markdown": markdown.render,
    "sarif": sarif.render,
    "junit": junit.render,
    "github": github.render,
    "html": html.render,
}


def render(
    format: str,
    diagnosis: Diagnosis,
    *,
    width: int = 80,
    color: bool = False,
    all_findings: bool = False,
    base_dir: Path | None = None,
    run_dir: Path | None = None,
    latest: bool = False,
    hourly_cost: float | None = None,
    explained: Mapping[str, str] | None = None,
    details: Details | None = None,
) -> str:
    """The diagnosis in one of ``FORMATS``, ending with a newline.

    ``width`` is in terminal cells, ``base_dir`` what locations are shown relative to (the
    caller's working directory), ``run_dir`` is named at the report's foot, and in the
    command that shows it again unless it is the ``latest`` run. ``hourly_cost``: what the machine
    costs an hour, for the terminal's table of time and money. ``explained``: a rule's
    documentation in Markdown by its code. ``details``: for ``html``. Raises :class:`UsageError`
    for a format that there is not.
    """
    if format not in FORMATS:
        raise UsageError(f"no report format {format!r}", f"there are: {', '.join(FORMATS)}")
    page = Page(
        width=width,
        color=color,
        all_findings=all_findings,
        base_dir=base_dir,
        run_dir=run_dir,
        latest=latest,
        hourly_cost=hourly_cost,
        explained=explained or {},
        details=details,
    )
    return FORMATS[format](diagnosis, page)
