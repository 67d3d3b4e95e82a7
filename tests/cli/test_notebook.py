"""`tdiag.load`: what a notebook gets of a run, a diagnosis or a trace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tdiag
from tdiag.errors import RunError, UsageError
from tdiag.model.diagnosis import Diagnosis
from tests.trace.making import kernel, op, step

from .test_report_tables import run_dir

__all__ = ["run_dir"]  # the fixture


def trace(folder: Path, name: str = "t.json") -> Path:
    """Two steps of 90 ms in which the device works but for the first five."""
    events = [
        event
        for number in range(2)
        for event in (
            step(number, 90_000 * number, 90_000),
            op("aten::mm", 90_000 * number + 1_000, 500),
            kernel("gemm", 90_000 * number + 5_000, 85_000),
        )
    ]
    file = folder / name
    file.write_text(json.dumps({"traceEvents": events}))
    return file


def test_importing_it_costs_next_to_nothing() -> None:
    heavy = "{'numpy', 'msgspec', 'rich', 'jinja2', 'torch', 'typer'} & set(sys.modules)"
    program = f"import sys, tdiag; print({heavy}); print(callable(tdiag.load))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\nTrue\n", done.stderr


def test_a_run_by_path_and_by_name_and_the_latest(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / ".tdiag" / "runs"
    runs.mkdir(parents=True)
    (runs / "20260101-train").symlink_to(run_dir)
    found = tdiag.load(run_dir)
    assert isinstance(found, Diagnosis)
    assert found.step is not None and found.step.count >= 20
    assert tdiag.load("20260101-train") == tdiag.load() == tdiag.load("latest") == found
    assert tdiag.load(run_dir / "diagnosis.json") == found, "kept by the first"


def test_a_trace_is_analyzed(tmp_path: Path) -> None:
    found = tdiag.load(trace(tmp_path))
    assert found.verdict.cls == "compute"
    assert tdiag.load(str(tmp_path)) == found, "of a folder its traces"


def test_a_notebook_shows_verdict_and_budget(tmp_path: Path) -> None:
    shown = tdiag.load(trace(tmp_path))._repr_html_()
    assert "Compute-bound" in shown and "device compute" in shown
    assert "<script" not in shown and "http" not in shown


def test_what_is_neither_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError) as no_run:
        tdiag.load()
    assert "tdiag run" in no_run.value.hint
    with pytest.raises(RunError, match="not a run directory"):
        tdiag.load("nowhere")
    (tmp_path / "ranks").mkdir()
    for number in range(2):
        trace(tmp_path / "ranks", f"rank0.{number}.json")
    with pytest.raises(UsageError, match="same rank"):
        tdiag.load("ranks")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tdiag.nothing
