"""`tdiag report --format`: any number at once, each to its own file."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.evidence.making import Run, plain
from tests.launch.harness import tdiag
from tests.report.building import render
from tests.report.samples import CPU_BOUND, SAMPLES


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run = Run(tmp_path / "run").steps(30, plain).write()
    (run / "diagnosis.json").write_text(render("json", CPU_BOUND))
    return run


def test_several_formats_at_once_each_with_its_file(run_dir: Path, tmp_path: Path) -> None:
    words = [
        "report", str(run_dir), "--json", "-f", "sarif", "-f", "junit", "-f", "markdown",
        "-o", "a.json", "-o", "a.sarif", "-o", "a.xml", "-o", "a.md",
    ]  # fmt: skip
    done = tdiag(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "a.json").read_text())["schema_version"] == 2
    assert json.loads((tmp_path / "a.sarif").read_text())["version"] == "2.1.0"
    assert ET.parse(tmp_path / "a.xml").getroot().tag == "testsuites"
    assert (tmp_path / "a.md").read_text().startswith("### Preprocessing-bound")


def test_several_formats_go_to_stdout_one_after_another(run_dir: Path, tmp_path: Path) -> None:
    done = tdiag("report", str(run_dir), "-q", "-f", "github", cwd=tmp_path)
    assert [line.split()[0] for line in done.stdout.splitlines()[:2]] == [
        "Preprocessing-bound:", "::notice",
    ]  # fmt: skip


def test_formats_without_a_file_each_are_refused(run_dir: Path, tmp_path: Path) -> None:
    done = tdiag("report", str(run_dir), "-f", "sarif", "-f", "junit", "-o", "a", cwd=tmp_path)
    assert done.returncode == 2
    assert "2 × --format but 1 × -o" in done.stderr
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("words", [["report"], ["view", "--no-browser"]])
def test_a_run_of_a_newer_tdiag_is_refused(words: list[str], run_dir: Path, tmp_path: Path) -> None:
    newer = json.loads((run_dir / "diagnosis.json").read_text()) | {"schema_version": 99}
    (run_dir / "diagnosis.json").write_text(json.dumps(newer))
    done = tdiag(words[0], str(run_dir), *words[1:], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "schema version 99" in done.stderr and "newer tdiag" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--no-browser", "--perfetto", "--speedscope"])
def test_records_of_a_newer_tdiag_are_not_shown(option: str, run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "run.json").write_text('{"schema": 99}')
    done = tdiag("view", str(run_dir), option, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "newer tdiag (run schema 99)" in done.stderr and "Traceback" not in done.stderr


def test_sarif_explains_its_rules(run_dir: Path, tmp_path: Path) -> None:
    done = tdiag("report", str(run_dir), "-f", "sarif", cwd=tmp_path)
    rules = json.loads(done.stdout)["runs"][0]["tool"]["driver"]["rules"]
    helped = {rule["id"]: rule["help"]["markdown"] for rule in rules if "help" in rule}
    assert "TD201" in helped and helped["TD201"].startswith("# TD201 ")
    assert set(helped) <= {finding.code for finding in SAMPLES["cpu"].findings}


def test_nothing_to_report_leaves_no_new_file_and_an_old_one_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old.md").write_text("kept")
    for name in ("old.md", "new.md"):
        assert tdiag("report", "--format", "markdown", "-o", name, cwd=tmp_path).returncode == 2
    assert [p.name for p in tmp_path.iterdir()] == ["old.md"]
    assert (tmp_path / "old.md").read_text() == "kept"
