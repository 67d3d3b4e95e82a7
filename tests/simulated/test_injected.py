"""Each device rule from the probe's record to the report, on a GPU run made of a CPU run."""

from __future__ import annotations

import statistics
from functools import cache
from pathlib import Path

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.from_run import load_run
from tdiag.model.diagnosis import Diagnosis
from tdiag.probe.wire import BASELINE, TRACE
from tdiag.report import render
from tdiag.report.of_diagnosis import document
from tdiag.rules.catalogue import all_rules
from tests.probe.harness import Watched, watch_code
from tests.simulated.cases import CASES, Case, Launches
from tests.simulated.inject import Gpu, inject

RECORDINGS = 6  # at most: a busy machine may hold up any one of them

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Makes the CPU run of a script, once a session."""

    @cache
    def record(script: str) -> Path:
        windows = ["baseline", "trace", "ops"]
        for _ in range(RECORDINGS):
            folder = tmp_path_factory.mktemp("planted")
            run = watch_code(
                folder, script, profiling=True, time_budget_s=6.0, windows=windows, short=True
            )
            assert run.returncode == 0, run.err
            if steady(run):
                break
        return run.run_dir

    return record


def steady(run: Watched) -> bool:
    """No traced step was held up: the GPU run's host takes its time from the few that there are.
    And no clean one for so long that a verdict could come of it."""
    traced, clean = (
        [step["t"] - step["s"] for step in run.steps() if step["w"] == window]
        for window in (TRACE, BASELINE)
    )
    return max(traced) < 3 * statistics.median(traced) and max(clean) < 0.03 * sum(clean)


def diagnosed(
    source: Path, target: Path, launches: Launches, gpu: Gpu, sync_line: str = ""
) -> Diagnosis:
    script = source.parent / "script.py"
    lines = enumerate(script.read_text().splitlines(), 1)
    syncs = [(str(script), n, "forward") for n, text in lines if sync_line and sync_line in text]
    return diagnose(load_run(inject(source, target, launches, gpu, syncs)))


@each_case
def test_the_planted_fault_is_found_with_its_line(
    case: Case, recorded: object, tmp_path: Path
) -> None:
    source = recorded(case.script)  # type: ignore[operator]
    found = diagnosed(source, tmp_path / "run", case.planted, case.gpu, case.sync_line)
    codes = [f.code for f in found.findings]
    assert case.code in codes, (found.verdict, codes, found.abstained)
    assert found.verdict.cls == case.cls, (found.verdict, found.budget)
    finding = next(f for f in found.findings if f.code == case.code)
    lines = (source.parent / "script.py").read_text().splitlines()
    pointed = lines[finding.location.line - 1] if finding.location else ""
    assert case.line in pointed if case.line else not pointed, pointed
    assert sum(part.ns for part in found.budget) == found.step.mean_ns if found.step else False
    assert case.code in render("terminal", document(found))


@each_case
def test_nothing_of_it_is_said_of_the_fixed_twin(
    case: Case, recorded: object, tmp_path: Path
) -> None:
    source = recorded(case.fixed_script or case.script)  # type: ignore[operator]
    found = diagnosed(source, tmp_path / "run", case.fixed, case.fixed_gpu or case.gpu)
    assert case.code not in [f.code for f in found.findings]
    assert found.verdict.cls == case.fixed_cls, (found.verdict, found.budget)


def test_every_device_rule_has_a_case() -> None:
    families = ("TD3", "TD4", "TD6")
    # TD622 looks for any op, on a device or not; TD623 for those of a CPU; TD307 and TD615 at what
    # the driver says of CPUs and processes (tests/evidence/test_system.py).
    others = {"TD307", "TD615", "TD622", "TD623"}
    wanted = {r.code for r in all_rules() if r.code.startswith(families)} - others
    assert wanted | {"TD214", "TD806", "TD809", "TD812", "TD813"} == {case.code for case in CASES}
