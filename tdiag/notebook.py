"""``tdiag.load``: a diagnosis in a notebook or in your own program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from tdiag.model.diagnosis import Diagnosis


class Shown(Diagnosis, frozen=True, kw_only=True):
    """A diagnosis that a notebook shows as its verdict, budget and findings."""

    def _repr_html_(self) -> str:
        from tdiag.report.html import fragment
        from tdiag.report.of_diagnosis import document

        return fragment(document(self), Path.cwd())

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """IPython in a terminal."""
        from tdiag.cli import conclude

        printer.text(conclude.shown("terminal", conclude.documented(self), sys.stdout))


def load(run_or_trace: str | os.PathLike[str] = "latest") -> Diagnosis:
    """The diagnosis of a run (its directory, its name below ``.tdiag/runs``, or ``latest``), a
    ``diagnosis.json``, or a torch.profiler trace (a file, or a folder of ranks).

    Raises :class:`~tdiag.errors.TdiagError` for anything else; its ``hint`` says what to do.
    """
    found = _load(os.fspath(run_or_trace))
    return shown(found)


def shown(diagnosis: Diagnosis) -> Shown:
    """The same diagnosis, as a notebook shows it."""
    return Shown(**msgspec.structs.asdict(diagnosis))


def _load(name: str) -> Diagnosis:
    from tdiag.cli.analyze import read_ranks
    from tdiag.cli.conclude import conclude
    from tdiag.diagnose import diagnose
    from tdiag.launch.rundir import find
    from tdiag.report.load import load_diagnosis

    path = Path(name)
    if path.name == "diagnosis.json" and path.is_file():
        return load_diagnosis(path)
    if path.is_file() or (path.is_dir() and not (path / "run.json").is_file()):
        return diagnose(read_ranks([path])[1])
    run_dir = find(None if name == "latest" else name)
    kept = (run_dir / "diagnosis.json").is_file()
    return load_diagnosis(run_dir) if kept else conclude(run_dir)
