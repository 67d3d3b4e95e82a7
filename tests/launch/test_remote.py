"""A run directory behind a URL: who may begin one there, what is copied, and what comes of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tdiag.cli import app
from tdiag.errors import OccupiedError, RunError, UsageError
from tdiag.launch import remote, rundir
from tdiag.launch.remote import Folder, fetched, is_url
from tdiag.launch.target import Target
from tests.evidence.test_machines import FAST, SLOW, rank
from tests.trace.making import write
from tests.trace.test_analyze import steps

from .harness import NO_ROOF
from .test_joining import CODE, JOB, OTHER_NODE, hostname


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/far/runs/7"
    return f"memory://{uuid.uuid4()}/runs/7"


def part(url: str, folder: Path, command: list[str], name: str) -> tuple[Folder, Path]:
    """What one machine does when it begins."""
    far = Folder(url)
    far.join(JOB, command)
    run = folder / name
    run.mkdir()
    rundir.furnish(run)
    return far, run


def two_machines(url: str, folder: Path) -> list[tuple[Folder, Path]]:
    commands = (JOB.command(""), OTHER_NODE)
    machines = [part(url, folder, words, f"m{n}") for n, words in enumerate(commands)]
    for number, (_, run) in enumerate(machines):
        rank(run, number, (FAST, SLOW)[number], host="ab"[number], up=number * 10**12)
        record = json.loads((run / "run.json").read_text())
        record |= {"command": commands[number], "end_unix_ns": 7, "start_unix_ns": number + 1}
        (run / "run.json").write_text(json.dumps(record))
    return machines


def test_what_is_a_url() -> None:
    assert all(map(is_url, ("s3://bucket/runs", "file:///tmp/x", "webhdfs+x://h:1/p")))
    assert not any(map(is_url, ("runs/7", "/tmp/x", "a:b", "C:\\runs", Path("s3://bucket"))))


def test_the_last_to_end_has_the_ranks_of_all(url: str, tmp_path: Path) -> None:
    (one, first), (two, second) = two_machines(url, tmp_path)
    assert one.leave(first, whole=True) == (os.uname().nodename,)
    assert not (first / "nodes").exists()
    assert two.leave(second, whole=True) == ()
    (other,) = (second / "nodes").iterdir()
    events = Path("events", "100.jsonl")
    assert (other / events).read_bytes() == (first / events).read_bytes()
    assert (second / events).exists()


def test_a_report_of_the_url_is_that_of_all_machines(url: str, tmp_path: Path) -> None:
    for far, run in two_machines(url, tmp_path):
        (run / "control" / "rank-0").touch()
        far.leave(run, whole=True)
    with fetched(url) as here:
        assert (here / "run.json").exists() and len(list(here.glob("nodes/*/run.json"))) == 1
        assert not (here / "control").exists()
    done = CliRunner().invoke(app, ["report", url, "--json"])
    assert done.exit_code == 0, done.output
    assert {row["rank"] for row in json.loads(done.stdout)["ranks"]} == {0, 1}
    done = CliRunner().invoke(app, ["report", url, "--html"])
    assert done.exit_code != 0 and not list(tmp_path.glob("*.html"))


def test_interrupted_for_good_it_is_told_to_the_others_alone(url: str, tmp_path: Path) -> None:
    (one, first), (two, second) = two_machines(url, tmp_path)
    one.leave(first, whole=False)
    assert two.leave(second, whole=True) == ()
    assert [file.name for file in (second / one.part).iterdir()] == ["run.json"]


@pytest.mark.parametrize(("command", "target", "said"), [
    (["torchrun", "--nnodes=2", "--node-rank=1", "other.py"], JOB, "another job is in"),
    (["python", "train.py"], Target("script", "train.py"), "is not empty"),
])  # fmt: skip
def test_another_job_is_refused(
    command: list[str], target: Target, said: str, url: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    part(url, tmp_path, JOB.command(""), "m")
    with pytest.raises(OccupiedError, match=said):
        Folder(url).join(target, command)
    assert len(Folder(url).records()) == 1


def test_a_run_that_is_over_is_never_joined(url: str, tmp_path: Path) -> None:
    far, run = part(url, tmp_path, JOB.command(""), "m")
    rundir.write_json(run / "run.json", {"command": JOB.command(""), "end_unix_ns": 7})
    far.leave(run, whole=True)
    with pytest.raises(OccupiedError, match="has ended"):
        Folder(url).join(JOB, OTHER_NODE)
    far.put(run / "run.json")
    with pytest.raises(OccupiedError, match="is not empty"):
        Folder(url).join(JOB, OTHER_NODE)


@pytest.mark.parametrize(("bad", "said"), [
    ("nosuch://bucket/7", "Protocol not known"),
    ("s3://bucket/7", "s3fs"),
])  # fmt: skip
def test_what_is_no_store_is_said_before_anything_is_made(
    bad: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    (tmp_path / "train.py").write_text("print('began')")
    done = CliRunner().invoke(app, ["run", "--run-dir", bad, "train.py"])
    assert isinstance(done.exception, UsageError) and said in done.exception.message
    assert not (tmp_path / ".tdiag").exists()


@pytest.mark.parametrize("method", ["leave", "put"])
def test_a_store_that_fails_at_the_end_costs_neither_run_nor_report(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')")

    def refuse(*args: object, **more: object) -> None:
        raise RunError("cannot use memory://gone: no route")

    monkeypatch.setattr(Folder, method, refuse)
    done = CliRunner().invoke(app, ["run", "--run-dir", f"memory://{uuid.uuid4()}/7", "train.py"])
    assert done.exit_code == 0 and "No verdict" in done.stderr
    assert "no route" in done.stderr
    (run,) = tmp_path.glob(".tdiag/runs/*-train")
    assert (run / "diagnosis.json").is_file()


def test_what_cannot_begin_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / ".tdiag").touch()  # so that no run directory can be made
    url = f"memory://{uuid.uuid4()}/7"
    done = CliRunner().invoke(app, ["run", "--run-dir", url, "train.py"])
    assert isinstance(done.exception, RunError) and not Folder(url).records()
    (tmp_path / ".tdiag").unlink()
    taken = f"file://{tmp_path}/train.py/7"
    done = CliRunner().invoke(app, ["run", "--run-dir", taken, "train.py"])
    assert isinstance(done.exception, RunError) and not (tmp_path / ".tdiag").exists()


def test_without_fsspec_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match="fsspec") as raised:
        Folder("memory://x")
    assert "pip install 'tdiag[fsspec]'" in raised.value.hint


def test_no_right_to_write_is_said_before_the_program_starts(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(RunError, match="cannot use file://"):
        Folder(f"file://{tmp_path}/taken/7").join(JOB, JOB.command(""))


def test_a_name_that_leads_out_is_not_written(tmp_path: Path) -> None:
    far = Folder("memory://out/runs")
    far.fs.pipe_file("/out/runs/../../x", b"")
    with pytest.raises(RunError, match="points outside the folder"):
        far.copy(tmp_path)


def test_traces_behind_a_url_are_analyzed(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    write(tmp_path / "far" / "t.json", steps(3000))
    (tmp_path / "far" / "large.pt").touch()
    for url in (f"file://{tmp_path}/far", f"file://{tmp_path}/far/t.json"):
        done = CliRunner().invoke(app, ["analyze", url, "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["verdict"]["class"] == "input"


def test_a_folder_that_is_made_is_never_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    for url in ("sftp://host/runs", "s3://bucket/runs"):
        far = Folder("memory://bucket/runs")
        far.url = url
        monkeypatch.setattr(far.fs, "makedirs", lambda *_, **__: made.append(_))
        monkeypatch.setattr(far.fs, "put_file", lambda *_: None)  # s3fs's own makes none
        far.put(Path(remote.__file__))
        assert len(made) == 1


@pytest.mark.training
def test_two_machines_without_a_shared_folder_make_one_report(tmp_path: Path) -> None:
    """Each machine is a hostname and a folder of its own, with one rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    url = f"file://{tmp_path}/bucket/runs/7"
    tdiag = [sys.executable, "-m", "tdiag", "run", "--run-dir", url, "--sampler", "off", "--"]
    job = [torchrun, "--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1",
           f"--master-port={port}"]  # fmt: skip
    processes = []
    for number, name in enumerate(("node-a", "node-b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(CODE)
        processes.append(subprocess.Popen(
            [*hostname(name), *tdiag, *job, f"--node-rank={number}", "train.py"],
            cwd=tmp_path / name, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(NO_ROOF),
                 "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ))  # fmt: skip
    said = [process.communicate(timeout=290)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    for name in ("node-a", "node-b"):
        shutil.rmtree(tmp_path / name)
    found = json.loads((tmp_path / "bucket" / "runs" / "7" / "diagnosis.json").read_text())
    assert {row["rank"] for row in found["ranks"]} == {0, 1}
    # Of two that end at the same moment both make it.
    assert sum("the last machine to end makes the report" in text for text in said) <= 1, said
