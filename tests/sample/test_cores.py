"""The trial of the cores: after a run that fetched, what each further core adds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tdiag.evidence.from_run import load_run
from tdiag.evidence.machine import System
from tdiag.sample import cores
from tests.evidence.making import Run, plain


def ran(folder: Path, fetched: bool = True) -> Path:
    run = Run(folder)
    run.steps(30, plain)
    if fetched:
        run.add("fetch", t=run.now, wall=5)
    machine = {"kind": "machine", "t": 0, "cores_machine": 2, "cores_allowed": 2}
    written = run.write()
    (written / "system.jsonl").write_text(json.dumps(machine) + "\n")
    return written


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "cores_allowed", lambda: 2.5)


def test_a_run_that_fetched_leaves_its_trial(tmp_path: Path) -> None:
    run_dir = ran(tmp_path)
    cores.try_cores(run_dir)
    adds = json.loads((run_dir / "cores.json").read_text())
    assert set(adds) == set(cores.WORKS)
    system = load_run(run_dir).get(System)
    assert system is not None and system.further_core is not None
    least, most = system.further_core
    assert 0 <= least <= most <= 1


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_on_one_core_add_nothing(processes: int) -> None:
    pinned = "import os, sys; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
    code = f"{pinned} from tdiag.sample.cores import further_core as f; print(f({processes}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    adds = json.loads(done.stdout.replace("'", '"'))
    assert all(share < 0.5 for share in adds.values())


@pytest.mark.parametrize(("allowed", "fetched"), [(1.5, True), (8.0, False)])
def test_nothing_is_measured_that_nobody_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: float, fetched: bool
) -> None:
    monkeypatch.setattr(cores, "cores_allowed", lambda: allowed)
    run_dir = ran(tmp_path, fetched)
    cores.try_cores(run_dir)
    assert not (run_dir / "cores.json").exists()


def test_a_trial_that_fails_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    run_dir = ran(tmp_path)
    cores.try_cores(run_dir)
    system = load_run(run_dir).get(System)
    assert system is not None and system.further_core is None


@pytest.mark.parametrize(
    ("said", "kept"),
    [('{"a": 0.4, "b": 1.3}', (0.4, 1.0)), ('{"a": -0.2}', (0.0, 0.0)), ("{}", None), ("{", None)],
)
def test_what_a_further_core_adds_lies_between_nothing_and_a_whole_one(
    tmp_path: Path, said: str, kept: tuple[float, float] | None
) -> None:
    run_dir = ran(tmp_path)
    (run_dir / "cores.json").write_text(said)
    system = load_run(run_dir).get(System)
    assert system is not None and system.further_core == kept
