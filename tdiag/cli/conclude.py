"""From a run directory to a diagnosis, and where commands print and write it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tdiag.errors import RunError, UsageError

if TYPE_CHECKING:
    from tdiag.evidence.store import Evidence
    from tdiag.model.diagnosis import Diagnosis
    from tdiag.report.document import Document
    from tdiag.report.page import Page

# Longer lines are hard to read, so a report is at most this many characters wide.
MAX_WIDTH, PLAIN_WIDTH = 120, 100


def check_cost(hourly_cost: float | None, format: str) -> None:
    """Raises UsageError if ``--hourly-cost`` is used with a format other than terminal."""
    if hourly_cost is not None and format != "terminal":
        raise UsageError(
            f"--hourly-cost works with the terminal format only, not with {format}",
            "leave out one of them",
        )


def conclude(run_dir: Path, evidence: Evidence | None = None) -> Diagnosis:
    """Load the evidence if it is not given, diagnose with the run's trials, and write
    ``diagnosis.json``.

    Returns what was written, read back, so that a later report shows the same. If the disk is full,
    only the file is missing, not the report. Raises RunError if the run directory cannot be read.
    """
    import msgspec

    from tdiag.cli import complain
    from tdiag.diagnose import diagnose
    from tdiag.diagnose.proven import proven
    from tdiag.evidence.from_run import load_run
    from tdiag.launch.rundir import write_text
    from tdiag.model.diagnosis import Diagnosis
    from tdiag.report.json import encode
    from tdiag.report.load import load_trials

    diagnosis = diagnose(evidence or load_run(run_dir))
    if trials := load_trials(run_dir):
        diagnosis = proven(diagnosis, trials)
    text = encode(diagnosis)
    try:
        write_text(run_dir / "diagnosis.json", text)
    except RunError as error:
        complain(error)
    return msgspec.json.decode(text, type=Diagnosis)


def documented(
    diagnosis: Diagnosis, *, hourly_cost: float | None = None, evidence: Evidence | None = None,
    run_dir: Path | None = None,
) -> Document:  # fmt: skip
    """The report's document, with the text of `tdiag explain` for each rule found. ``evidence``:
    the data for a page's charts; None leaves the charts out."""
    from tdiag.report.of_diagnosis import document
    from tdiag.rules.catalogue import all_rules, page

    found = {finding.code for finding in diagnosis.findings}
    explained = {rule.code: page(rule) for rule in all_rules() if rule.code in found}
    began = _began_unix_ns(run_dir) if run_dir else None
    return document(diagnosis, hourly_cost=hourly_cost, explained=explained, evidence=evidence,
                    began_unix_ns=began)  # fmt: skip


def _began_unix_ns(run_dir: Path) -> int | None:
    import json

    try:
        began = json.loads((run_dir / "run.json").read_text()).get("start_unix_ns")
    except (OSError, ValueError, AttributeError):
        return None
    return began if isinstance(began, int) else None


def shown(
    name: str, document: Document, stream: TextIO, run_dir: Path | None = None, *,
    all_findings: bool = False,
) -> str:  # fmt: skip
    """The document in one format, laid out for this stream."""
    from tdiag.report import render

    page = replace(page_for(stream), all_findings=all_findings, run_dir=run_dir,
                   latest=_is_latest(run_dir))  # fmt: skip
    return render(name, document, page)


def page_for(stream: TextIO) -> Page:
    """The stream's width, and colour only if the stream shows it (NO_COLOR counts). Paths are
    relative to the working directory."""
    from tdiag.report.page import Page

    terminal = stream.isatty()
    color = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Page(min(_columns(stream), MAX_WIDTH), color, base_dir=Path.cwd())


def _is_latest(run_dir: Path | None) -> bool:
    """Whether ``tdiag report`` without arguments shows this run."""
    from tdiag.launch.rundir import find

    try:
        return run_dir is not None and find(None) == run_dir.resolve()
    except RunError:
        return False


def _columns(stream: TextIO) -> int:
    """COLUMNS, else the terminal's width, else ``PLAIN_WIDTH``."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    try:
        return os.get_terminal_size(stream.fileno()).columns or PLAIN_WIDTH
    except OSError:
        return PLAIN_WIDTH


@contextmanager
def open_output(path: Path | None) -> Iterator[TextIO | None]:
    """Open the file of ``-o`` before the long run, without changing it, because the run may fail; a
    new file is then removed. Raises RunError if it cannot be written."""
    if path is None:
        yield None
        return
    fresh = not path.exists()
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None
    try:
        with file:
            yield file
    finally:
        if fresh and path.stat().st_size == 0:
            path.unlink()
