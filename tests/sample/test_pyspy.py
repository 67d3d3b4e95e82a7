"""py-spy is attached when asked, says so only when it samples, and a refusal explains itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tdiag.sample import attached, pyspy
from tdiag.sample.pyspy import PySpy
from tests.launch.harness import wait_for

NAME = "py-spy"

SOME_SAMPLES_S = 1.0  # a hundred of them on an idle machine

BUSY = """
import multiprocessing, os, signal
def work():
    while True:
        sum(range(1000))
if __name__ == "__main__":
    multiprocessing.get_context("fork").Process(target=work, daemon=True).start()
    print(flush=True)
    work()
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "control").mkdir()
    return tmp_path


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    yield from busy_process(tmp_path, sys.executable)


def busy_process(folder: Path, python: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a forked child, both at work; both end with the test."""
    (folder / "busy.py").write_text(BUSY)
    child = subprocess.Popen([python, str(folder / "busy.py")], stdout=subprocess.PIPE,
                             start_new_session=True)  # fmt: skip
    assert child.stdout is not None
    with child.stdout:
        child.stdout.readline()
        yield child
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def ask(run_dir: Path, pid: int, number: int = 1) -> Path:
    (run_dir / "control" / f"sample-{pid}-{number}.want").touch()
    return run_dir / "control" / f"sample-{pid}-{number}.state"


def answer(sampler: PySpy, state: Path) -> str:
    wait_for(lambda: sampler.tick() or state.exists())
    return state.read_text()


def fake(folder: Path, text: str) -> str:
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_it_samples_a_process_and_its_children_until_stopped(
    run_dir: Path, busy: subprocess.Popen[bytes]
) -> None:
    sampler = PySpy(run_dir)
    assert answer(sampler, ask(run_dir, busy.pid)) == "attached\n"
    final = run_dir / f"stacks-{busy.pid}.speedscope.json"
    assert not final.exists()
    time.sleep(SOME_SAMPLES_S)
    (run_dir / "control" / f"sample-{busy.pid}-1.stop").touch()
    wait_for(lambda: sampler.tick() or final.exists())
    document = json.loads(final.read_text())
    assert len({p["name"].split()[1] for p in document["profiles"]}) == 2
    files = {f["file"] for f in document["shared"]["frames"] if f["name"] == "work"}
    assert files == {str(run_dir / "busy.py")}
    assert busy.poll() is None


def test_a_program_that_ends_meanwhile_leaves_its_stacks(
    run_dir: Path, busy: subprocess.Popen[bytes]
) -> None:
    sampler = PySpy(run_dir)
    answer(sampler, ask(run_dir, busy.pid))
    time.sleep(SOME_SAMPLES_S)
    busy.kill()
    wait_for(lambda: sampler.tick() or busy.poll() is not None)
    sampler.close()
    assert json.loads((run_dir / f"stacks-{busy.pid}.speedscope.json").read_text())["profiles"]


def test_of_two_passes_the_one_that_saw_more_stays(run_dir: Path) -> None:
    sampler = PySpy(run_dir)
    write = "for w; do out=$w; done; printf '%s' {text} > $out; echo 'Sampling process 100'"
    for number, text in enumerate(["some", "muchmore", "few"], start=1):
        sampler.program = fake(run_dir, write.format(text=text))
        answer(sampler, ask(run_dir, 12, number))
        wait_for(lambda: sampler.tick() or not sampler.live)
    assert (run_dir / "stacks-12.speedscope.json").read_text() == "muchmore"


def test_each_late_pass_has_a_file_of_its_own(run_dir: Path) -> None:
    """The early samples stay, and the last ones are not those of most samples."""
    sampler = PySpy(run_dir)
    write = "for w; do out=$w; done; printf '%s' {text} > $out; echo 'Sampling process 100'"
    for number, text in ((1, "early"), (101, "muchmore"), (102, "few")):
        sampler.program = fake(run_dir, write.format(text=text))
        answer(sampler, ask(run_dir, 12, number))
        wait_for(lambda: sampler.tick() or not sampler.live)
    kept = {path.name: path.read_text() for path in run_dir.glob("*.speedscope.json")}
    assert kept == {
        "stacks-12.speedscope.json": "early",
        "late-stacks-12-101.speedscope.json": "muchmore",
        "late-stacks-12-102.speedscope.json": "few",
    }


PERMISSION = "Error: Permission Denied: Try running again with elevated permissions"


def test_a_refusal_says_what_to_allow(run_dir: Path) -> None:
    sampler = PySpy(run_dir)
    sampler.program = fake(run_dir, f"echo '{PERMISSION}' >&2; exit 1")
    state = answer(sampler, ask(run_dir, 12))
    assert state.startswith("refused: the system does not let py-spy read the process")
    assert "--cap-add SYS_PTRACE" in state and state.count("\n") == 1


def test_ptrace_scope_is_named_where_it_is_what_refuses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scope = tmp_path / "ptrace_scope"
    monkeypatch.setattr(pyspy, "PTRACE_SCOPE", scope)
    assert "ptrace_scope" not in pyspy.allow_hint()
    scope.write_text("0\n")
    assert "ptrace_scope" not in pyspy.allow_hint()
    scope.write_text("1\n")
    assert "kernel.yama.ptrace_scope=0" in pyspy.allow_hint()


def test_other_failures_are_told_in_py_spys_own_words(run_dir: Path) -> None:
    sampler = PySpy(run_dir)
    sampler.program = fake(run_dir, "echo 'Error: Failed to find python version' >&2; exit 1")
    state = answer(sampler, ask(run_dir, 12))
    assert state == "refused: py-spy: Error: Failed to find python version\n"


def test_no_py_spy_is_answered_at_once(run_dir: Path) -> None:
    sampler = PySpy(run_dir, enabled=False)
    assert answer(sampler, ask(run_dir, 12)).startswith("refused: py-spy is not installed")
    sampler.program = str(run_dir / "missing")
    assert answer(sampler, ask(run_dir, 13)).startswith("refused: cannot start py-spy")


def test_a_py_spy_that_hangs_is_ended(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "STOP_WITHIN_S", 0.1)
    sampler = PySpy(run_dir)
    sampler.program = fake(run_dir, "trap '' INT; echo 'Sampling process 100'; exec sleep 60")
    assert answer(sampler, ask(run_dir, 12)) == "attached\n"
    sampler.close()
    assert sampler.live == {}


@pytest.mark.parametrize("trap", ["", "trap '' INT;"], ids=["asked", "ended"])
def test_whoever_waits_for_a_process_that_py_spy_holds_gets_it(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    """A tool that lives on while the process is dead; the zombie stands for one that is held."""
    monkeypatch.setattr(attached, "STOP_WITHIN_S", 0.1)
    monkeypatch.setattr(attached, "HELD_AFTER_S", 0.1)
    sampler = PySpy(run_dir)
    sampler.program = fake(run_dir, f"{trap} echo 'Sampling process 100'; exec sleep 60")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as dead:
        assert answer(sampler, ask(run_dir, dead.pid)) == "attached\n"
        for _ in range(10):
            time.sleep(0.05)
            sampler.tick()
        assert sampler.live, "a process that only waits is not held"
        dead.kill()
        wait_for(lambda: sampler.tick() or not sampler.live)


def test_the_request_may_name_an_ancestor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the ranks of a job, which are all sampled."""
    seen: list[tuple[list[str], int]] = []
    monkeypatch.setattr(
        "tdiag.sample.attached.Attached", lambda command, pid, _: seen.append((command, pid))
    )
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "sample-12-1.want").write_text("7")
    PySpy(tmp_path)._start("sample-12-1")
    ((command, pid),) = seen
    assert command[command.index("--pid") + 1] == "7"
    assert pid == 12  # whose end is waited for


@pytest.mark.parametrize("listed", [f"../../bin/{NAME}", f"../../../elsewhere/bin/{NAME}"])
def test_it_is_found_where_pip_put_it(
    listed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``--target`` beside the packages, whatever the list says; with ``--user`` as listed."""
    packages = tmp_path / "lib" / "python" / "packages"
    about = packages / "py_spy-0.4.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: py-spy\nVersion: 0.4.0\n")
    (about / "RECORD").write_text(f"{listed},,\n")
    beside = packages / "bin" / NAME
    program = (packages / listed).resolve() if "elsewhere" in listed else beside
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "path", [str(packages)])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    found = pyspy.find_program()
    assert found is not None
    assert Path(found).resolve() == program
