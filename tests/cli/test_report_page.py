"""`tdiag report --html` and `tdiag analyze --html`: where the page goes, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launch.harness import tdiag
from tests.trace.making import kernel, op, step

from .test_report_tables import run_dir

__all__ = ["run_dir"]  # the fixture


def test_a_page_goes_into_the_run_directory_and_its_path_to_stdout(
    run_dir: Path, tmp_path: Path
) -> None:
    done = tdiag("report", str(run_dir), "--html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / done.stdout.strip()).resolve() == (run_dir / "report.html").resolve()
    text = (run_dir / "report.html").read_text()
    for section in ("Step times over the run", "One median step", "Flame graphs", "Ops, per step"):
        assert section in text


def test_a_page_goes_where_it_is_told(run_dir: Path, tmp_path: Path) -> None:
    done = tdiag(
        "report", str(run_dir), "-f", "html", "-o", "p.html", "-f", "line", "-o", "l.txt",
        cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "p.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "l.txt").read_text().count("\n") == 1


def test_a_diagnosis_without_its_run_needs_a_place(run_dir: Path, tmp_path: Path) -> None:
    tdiag("report", str(run_dir), "--json", "-o", "diagnosis.json", cwd=tmp_path)
    done = tdiag("report", "diagnosis.json", "--html", cwd=tmp_path)
    assert done.returncode == 2 and "specify where to write the page: -o FILE" in done.stderr
    done = tdiag("report", "diagnosis.json", "--html", "-o", "page.html", cwd=tmp_path)
    assert done.returncode == 0
    assert "Step times over the run" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("words", [["--html", "--json"], ["--html", "--format", "line"]])
def test_one_format_at_a_time_of_a_trace(words: list[str], tmp_path: Path) -> None:
    done = tdiag("analyze", "t.json", *words, cwd=tmp_path)
    assert done.returncode == 2 and "keep one of them" in done.stderr


def test_a_traces_page_is_named_after_it(tmp_path: Path) -> None:
    events = [step(0, 0, 900), step(1, 900, 900), op("aten::mm", 5, 50), kernel("gemm<x>", 20, 800)]
    (tmp_path / "my.pt.trace.json").write_text(json.dumps({"traceEvents": events}))
    done = tdiag("analyze", "my.pt.trace.json", "--html", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "my.html\n"), done.stderr
    text = (tmp_path / "my.html").read_text()
    assert "One median step" in text and "gemm&lt;x&gt;" in text
