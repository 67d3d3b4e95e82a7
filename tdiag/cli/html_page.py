"""Writes the HTML page of a run or a trace to a file and prints only its path."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from tdiag.evidence.store import Evidence
    from tdiag.model.diagnosis import Diagnosis

PAGE = "report.html"


def chosen_format(format: str, *, json: bool, html: bool) -> str:
    """The format that ``--format``, ``--json`` and ``--html`` name. UsageError if they disagree."""
    from tdiag.errors import UsageError

    asked = [name for name, wanted in (("json", json), ("html", html)) if wanted]
    if len({*asked, *([format] if format != "terminal" else [])}) > 1:
        raise UsageError("--json, --html and --format name different formats", "keep one of them")
    return asked[0] if asked else format


def write_page(run_dir: Path, diagnosis: Diagnosis, evidence: Evidence) -> Path:
    """Write ``report.html`` in a run directory. Raises RunError if it cannot be written."""
    from tdiag.launch.rundir import write_text

    path = run_dir / PAGE
    write_text(path, page_text(diagnosis, evidence, run_dir))
    return path


def page_text(diagnosis: Diagnosis, evidence: Evidence | None, run_dir: Path | None = None) -> str:
    """``evidence``: the data of charts and tables; None leaves them out."""
    from tdiag.cli.conclude import documented, shown

    document = documented(diagnosis, evidence=evidence, run_dir=run_dir)
    return shown("html", document, sys.stdout, run_dir)


def put_page(diagnosis: Diagnosis, run_dir: Path, file: TextIO | None) -> None:
    """Write the page to ``file``, or else into the run directory. For a folder with only a
    ``diagnosis.json``, the page has no charts, and without ``file`` a UsageError asks for one."""
    from tdiag.cli.streams import write
    from tdiag.errors import UsageError
    from tdiag.evidence.from_run import load_run

    whole = (run_dir / "run.json").is_file()
    evidence = load_run(run_dir) if whole else None
    if file is not None:
        file.truncate(0)
        write(file, page_text(diagnosis, evidence, run_dir if whole else None))
    elif evidence is not None:
        say_where(write_page(run_dir, diagnosis, evidence))
    else:
        raise UsageError(
            f"{run_dir} is not a run directory", "specify where to write the page: -o FILE"
        )


def say_where(path: Path) -> None:
    """Print only the path on stdout, for a shell: ``open "$(tdiag report --html)"``."""
    from tdiag.cli.streams import write

    write(sys.stdout, os.path.relpath(path) + "\n")
