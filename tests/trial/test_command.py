"""`tdiag try` as a command: one clear message for each mistake, and what the last run proposes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import warm

SCRIPT = "def metric(): pass\n"


def tdiag(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **variables}
    return warm.run(["-m", "tdiag", *words], folder, environ, modules=warm.TDIAG, timeout_s=290)


def try_(folder: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    done = tdiag(folder, "try", *words)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "there is no run here yet"),
        (("train.py", "--set", "loader.workers=4"), "no change 'loader.workers' to try"),
        (("train.py", "--freeze", "train.py:metrik"), "train.py has no function metrik"),
        (("nope.py", "--set", "torch.compile"), "no such script: nope.py"),
        (("train.py", "--patch", "train.py"), "--patch train.py: the file exists, and tdiag did"),
        (("train.py", "--patch", "no/fix.patch"), "--patch no/fix.patch: no such folder"),
        (("train.py", "--patch", "."), "--patch .: is a folder"),
        (("train.py", "--patch", "x", "--ceilings"), "--patch needs a change that can be kept"),
        (("train.py", "--patch", "x", "--diff", "y"), "--patch turns named changes into a patch"),
    ],
)
def test_a_mistake_is_told_before_anything_is_started(
    words: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    code, out, err = try_(tmp_path, *words)
    assert (code, out) == (2, "") and f"tdiag: {told}" in err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_script_that_fails_or_does_not_train_is_told_after_its_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    code, out, err = try_(tmp_path, "train.py")
    assert (code, out) == (2, "") and "no finding of the last run proposes a change" in err
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    code, out, err = try_(tmp_path, "train.py")
    assert (code, out) == (2, "") and "the script itself failed (exit code 3)" in err


def test_a_patch_of_a_run_needs_its_trials(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    (tmp_path / "mine").write_text("hello")
    for words, why in ((["--patch=x"], "add --try"), (["--try", "--patch=mine"], "did not write")):
        done = tdiag(tmp_path, "run", "train.py", "--profiling", *words)
        assert done.returncode == 2 and why in " ".join(done.stderr.split()), done.stderr
    assert not (tmp_path / "ran").exists()


def test_it_lists_all_changes(tmp_path: Path) -> None:
    code, out, _ = try_(tmp_path, "--list")
    assert code == 0 and "loader.num_workers=N\n    DataLoaders start" in out


def test_a_last_run_without_a_proposal_is_told(tmp_path: Path) -> None:
    run_dir = tmp_path / ".tdiag" / "runs" / "20260101T000000Z-train"
    for name in ("events", "control"):
        (run_dir / name).mkdir(parents=True)
    record = {"schema": 1, "command": ["python", "train.py"], "script": "train.py", "cwd": "."}
    (run_dir / "run.json").write_text(json.dumps(record))
    (run_dir / "config.json").write_text("{}")
    code, _, err = try_(tmp_path)
    assert code == 2 and "no finding of the last run proposes a change" in err, err
