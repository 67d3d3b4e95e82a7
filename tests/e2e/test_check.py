"""`tdiag check` as a user's CI runs it, whole: a fresh repository, a good commit, a bad one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.gate.building import commit, repository
from tests.gate.test_check import LOSS, SLOW, TRAIN
from tests.launch.harness import TDIAG

PATIENCE_S = 1800.0  # only so that a broken test ends


def check(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TDIAG, "check", "train.py", *words, "-f", "json", "-q"], cwd=folder, text=True,
        capture_output=True, timeout=PATIENCE_S / 3, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
def test_a_good_commit_does_not_fail_and_a_bad_one_does(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repo", train_py=TRAIN, loss_py=LOSS)
    commit(folder, loss_py=f"# says more and does the same\n{LOSS}")
    good = check(folder, "--against", "HEAD~1", "--max-regression", "10%")
    # On a crowded machine it may remain open; a regression it is not.
    assert good.returncode in (0, 3), good.stderr
    assert json.loads(good.stdout)["counters"] == []
    commit(folder, loss_py=SLOW)
    bad = check(folder, "--against", "HEAD~1")
    assert bad.returncode == 1, bad.stderr
    outcome = json.loads(bad.stdout)
    assert outcome["changed_files"] == ["loss.py"]
    assert outcome["step"]["low"] > 1.1


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
def test_a_stored_baseline_is_passed_and_then_failed(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repo", train_py=TRAIN, loss_py=LOSS)
    stored = ("--baseline", "tdiag-baseline.json")
    assert check(folder, *stored, "--update").returncode == 0
    good = check(folder, *stored, "--max-regression", "30%")
    assert good.returncode in (0, 3), good.stderr
    commit(folder, loss_py=SLOW)
    bad = check(folder, *stored)
    assert bad.returncode == 1, bad.stderr
