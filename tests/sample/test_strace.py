"""strace is attached when asked, to the process and to the workers that it has."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tdiag.evidence.from_run import load_run
from tdiag.evidence.machine import Syscalls
from tdiag.sample.strace import Strace
from tests.evidence.making import Run, plain
from tests.launch.harness import wait_for

READER = """
import os, sys, time
if os.fork() == 0:
    time.sleep(60)
print(flush=True)
while True:
    open("/dev/null").close()
    time.sleep(0.002)
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "control").mkdir()
    return tmp_path


def ask(run_dir: Path, tool: Strace, pid: int) -> str:
    (run_dir / "control" / f"syscalls-{pid}-1.want").touch()
    state = run_dir / "control" / f"syscalls-{pid}-1.state"
    wait_for(lambda: tool.tick() or state.exists())
    return state.read_text()


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_calls_are_counted_and_come_back_per_step(run_dir: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", READER], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        tool = Strace(run_dir)
        state = ask(run_dir, tool, child.pid)
        if state.startswith("refused: the system"):
            child.kill()
            pytest.skip(state)
        assert state == "attached\n"
        assert tool.live[f"syscalls-{child.pid}-1"].process.args.count("-p") == 2  # the fork, too
        (run_dir / "control" / f"syscalls-{child.pid}-1.stop").touch()
        kept = run_dir / f"syscalls-{child.pid}.txt"
        wait_for(lambda: tool.tick() or kept.exists())
        assert child.poll() is None
        child.kill()
    run = Run(run_dir, pid=child.pid)
    run.steps(30, plain).add("syscalls", steps=2)
    found = load_run(run.write()).get(Syscalls)
    assert found is not None and found.steps == 2
    assert any("nanosleep" in row.name or "select" in row.name for row in found.rows)


def test_where_strace_is_not_installed_it_says_so(run_dir: Path) -> None:
    assert ask(run_dir, Strace(run_dir, enabled=False), 12) == "refused: strace is not installed\n"


SUMMARY = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 98.71    1.874989       10901       172           futex
  0.25    0.004740          27       172        12 openat
------ ----------- ----------- --------- --------- ----------------
100.00    1.899522        1104       344        12 total
"""


def test_the_summary_is_read_per_step(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.steps(30, plain).add("syscalls", steps=4)
    (tmp_path / "syscalls-100.txt").write_text(SUMMARY)
    found = load_run(run.write()).get(Syscalls)
    assert found is not None
    rows = [(row.name, row.calls, row.errors, round(row.ns)) for row in found.rows]
    assert rows == [("futex", 43, 0, 468_747_250), ("openat", 43, 3, 1_185_000)]


def test_why_there_is_none_is_said(tmp_path: Path) -> None:
    bare = load_run(Run(tmp_path / "a").steps(30, plain).write())
    assert bare.missing[Syscalls] == "system calls were not counted: not requested"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_text('{"windows": ["baseline", "syscalls"]}')
    run = Run(tmp_path / "b").steps(30, plain)
    run.add("window", t=run.now, name="syscalls", state="skipped", why="strace is not installed")
    refused = load_run(run.write())
    assert refused.missing[Syscalls] == "system calls were not counted: strace is not installed"
    assert str(refused.capture["syscalls"]) == "failed: strace is not installed"
