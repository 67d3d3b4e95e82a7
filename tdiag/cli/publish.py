"""Publishes the results of `tdiag check` and `tdiag compare`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from tdiag.gate.outcome import Outcome

SUMMARY, ACTIONS, WORKSPACE = "GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS", "GITHUB_WORKSPACE"


def put(outcome: Outcome, format: str, file: TextIO | None) -> None:
    """Print the report, or write it to the file of ``-o``. In GitHub Actions also write it to the
    job's summary, and print annotations after the terminal report. Raises RunError if it cannot be
    written."""
    from tdiag.cli.conclude import page_for
    from tdiag.cli.streams import write
    from tdiag.gate.check_document import document
    from tdiag.report import render
    from tdiag.report.page import Page

    stream = file or sys.stdout
    # GitHub expects paths relative to the repository's root, wherever this ran.
    root = Page(base_dir=Path(os.environ.get(WORKSPACE) or Path.cwd()))
    found = document(outcome)
    if format == "terminal":
        text = render(format, found, page_for(stream))
        if os.environ.get(ACTIONS) == "true" and file is None:
            text += render("github", found, root)
    else:
        text = render(format, found, root)
    if file is not None:
        file.truncate(0)
    write(stream, text)
    if summary := os.environ.get(SUMMARY):
        _append(Path(summary), render("markdown", found, root))


def _append(path: Path, text: str) -> None:
    from tdiag.errors import RunError

    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise RunError(f"cannot write {path} (${SUMMARY}): {error.strerror}") from None
