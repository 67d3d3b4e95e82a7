"""The run directory: private, never overwritten, and every failure to write it said at once."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from tdiag.errors import RunError
from tdiag.launch import rundir


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_named_by_time_and_script_and_private(folder: Path) -> None:
    made = rundir.create("my train/x")
    assert made.parent == folder / ".tdiag" / "runs"
    assert re.fullmatch(r"\d{8}T\d{6}Z-my_train_x", made.name)
    assert made.stat().st_mode & 0o777 == 0o700
    assert {p.name for p in made.iterdir()} == {"events", "control", "tensorboard", "config.json"}


def test_latest_is_the_newest_and_two_runs_of_one_second_do_not_meet() -> None:
    runs = [rundir.create("train") for _ in range(3)]
    assert len(set(runs)) == 3
    for run in runs:
        rundir.write_json(run / "run.json", {})
    assert (runs[0].parent / "latest").resolve() == rundir.find(None) == runs[2]
    assert rundir.find(runs[0].name) == rundir.find(str(runs[0])) == runs[0]


def test_runs_stay_out_of_the_users_git() -> None:
    rundir.create("train")
    assert Path(".tdiag/.gitignore").read_text() == "*\n"


def test_out_names_the_directory_itself_and_is_never_overwritten() -> None:
    out = rundir.create("train", Path("mine/run"))
    assert out == Path("mine/run").absolute() and (out / "events").is_dir()
    with pytest.raises(RunError, match="not empty"):
        rundir.create("train", Path("mine/run"))


def test_a_place_that_cannot_be_written_is_one_message() -> None:
    Path(".tdiag").write_text("a file")
    with pytest.raises(RunError, match="cannot write the run directory") as caught:
        rundir.create("train")
    assert "--out DIR" in caught.value.hint and caught.value.exit_code == 2


def test_a_working_directory_that_is_gone_is_one_message(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "gone").mkdir()
    monkeypatch.chdir(folder / "gone")
    (folder / "gone").rmdir()
    with pytest.raises(RunError, match="cannot write the run directory"):
        rundir.create("train")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission_is_one_message(folder: Path) -> None:
    folder.chmod(0o500)
    with pytest.raises(RunError, match="Permission denied"):
        rundir.create("train")


def test_a_full_disk_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 10, 1 << 20))
    with pytest.raises(RunError, match="the disk is full") as caught:
        rundir.create("train")
    assert "only 1 MB free" in caught.value.message
    assert not list(Path(".tdiag/runs").iterdir())


def test_a_write_that_meets_a_full_disk_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = rundir.create("train")
    rundir.write_json(run / "run.json", {"a": 1})
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunError, match="the disk is full"):
        rundir.write_json(run / "run.json", {"a": 2})
    assert json.loads((run / "run.json").read_text()) == {"a": 1}


def test_json_is_replaced_whole() -> None:
    run = rundir.create("train")
    rundir.write_json(run / "run.json", {"a": 1})
    rundir.write_json(run / "run.json", {"a": 2})
    assert json.loads((run / "run.json").read_text()) == {"a": 2}
    assert not list(run.glob("*.part"))


def test_no_run_is_said_with_what_to_do() -> None:
    with pytest.raises(RunError, match="no run here yet"):
        rundir.find(None)
    rundir.write_json(rundir.create("train") / "run.json", {})
    with pytest.raises(RunError, match="not a run directory") as caught:
        rundir.find("other")
    assert "-train" in caught.value.hint
