"""`tdiag report --ops`, `--calls`, `--lines`, `--system`: from a run directory to the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.evidence.making import MS, Run, plain
from tests.evidence.test_stacks import FRAMES, LOSS, MODULE, thread
from tests.evidence.test_system import MACHINE, SECOND, sample
from tests.launch.harness import tdiag
from tests.trace.making import op, step


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which every profiler had its window."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run = Run(folder).steps(30, plain)
    run.open("trace")
    began = run.now
    for _ in range(2):
        plain(run)
        run.end()
    run.add("trace", file="trace.json", steps=2, events=9, t=began, **{"pass": 1})
    rows = [["/u/train.py", 7, "slow", 6, 8 * MS, 10 * MS]]
    run.add("calls", steps=2, rows=rows, **{"pass": 1})
    run.write()
    events = [step(0, 0, 30_000), step(1, 30_000, 30_000), op("aten::mul", 14_000, 1_000)]
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
    profile = thread(100, 100, [0, MODULE, LOSS], [0, MODULE, LOSS], [0, MODULE])
    stacks = {"shared": {"frames": FRAMES}, "profiles": [profile]}
    (folder / "stacks-100-1.speedscope.json").write_text(json.dumps(stacks))
    lines = (MACHINE, sample(2 * SECOND, 3, 100), sample(3 * SECOND, 3, 700))
    (folder / "system.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize(
    ("option", "shown"),
    [
        ("--ops", ("aten::mul    0.5 ", "500 µs", "1.7%")),
        ("--calls", ("slow", "/u/train.py:7", "4.00 ms", "5.00 ms")),
        ("--lines", ("Training process", "/u/train.py:8   the line itself", "67%")),
        ("--system", ("cores", "3.00", "disk read", "600", "B/s", "of", "16  GiB")),
    ],
)
def test_a_table_instead_of_the_report(
    run_dir: Path, option: str, shown: tuple[str, ...], tmp_path: Path
) -> None:
    done = tdiag("report", str(run_dir), option, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [part for part in shown if part not in done.stdout] == []
    assert "How it was measured" not in done.stdout


def test_a_diagnosis_file_stands_for_the_run_it_lies_in(run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "diagnosis.json").write_text("{}")
    done = tdiag("report", str(run_dir / "diagnosis.json"), "--calls", cwd=tmp_path)
    assert "/u/train.py:7" in done.stdout
    elsewhere = tmp_path / "diagnosis.json"
    elsewhere.write_text("{}")
    lost = tdiag("report", str(elsewhere), "--calls", cwd=tmp_path)
    assert lost.returncode == 2
    assert "is not a run directory" in lost.stderr


def test_a_run_without_steps_has_no_tables_and_says_why(tmp_path: Path) -> None:
    folder = Run(tmp_path / "run").write()
    done = tdiag("report", str(folder), "--ops", "--calls", "--lines", "--system", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    assert said.count("only one training step was seen") == 3
    assert "No system samples: the machine was sampled less than twice." in said


def test_a_table_has_no_other_format(run_dir: Path, tmp_path: Path) -> None:
    done = tdiag("report", str(run_dir), "--ops", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("tdiag: --ops works with the terminal format only")


def test_a_table_can_go_to_a_file(run_dir: Path, tmp_path: Path) -> None:
    done = tdiag("report", str(run_dir), "--calls", "-o", "calls.txt", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "/u/train.py:7" in (tmp_path / "calls.txt").read_text()
