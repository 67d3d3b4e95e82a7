"""What tdiag leaves alone after it has stopped a training, and what it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tdiag.launch.progress import Progress
from tdiag.launch.watchdog import NO_STEP_S, STILL_S, Watchdog, end

WAITS = """
import multiprocessing

def waiting():
    print(flush=True)
    multiprocessing.SimpleQueue().get()

waiting()
"""
WORKS = "print(flush=True)\nwhile True: pass"


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen]]:
    """Call with a source text to start it; all are gone afterwards."""
    monkeypatch.chdir(tmp_path)
    started: list[subprocess.Popen] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def start(started: list[subprocess.Popen], source: str) -> psutil.Process:
    Path("waits.py").write_text(source)
    process = subprocess.Popen([sys.executable, str(Path("waits.py"))], stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout is not None
    process.stdout.readline()
    return psutil.Process(process.pid)


class Run:
    """The events that the probe would write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "events"
        self.folder.mkdir()
        self.progress = Progress(folder)
        self.watchdog = Watchdog(self.progress)

    def write(self, pid: int, kind: str, **fields: object) -> None:
        with (self.folder / f"{pid}.jsonl").open("a") as file:
            file.write(json.dumps({"kind": kind, **fields}, separators=(",", ":")) + "\n")
        self.progress.look()

    def look(self, now_s: float, *processes: psutil.Process) -> bool:
        """Whether it ended them."""
        self.watchdog.look(now_s, lambda: processes)
        return bool(self.watchdog.ended)


def test_a_parent_that_waits_for_a_rank_that_tdiag_stopped(
    child: list[subprocess.Popen], tmp_path: Path
) -> None:
    parent, run = start(child, WAITS), Run(tmp_path)
    assert not run.look(0.0, parent) and not run.look(10 * STILL_S, parent)
    run.write(71, "stop", t=1)
    assert not run.look(100.0, parent)
    assert not run.look(100.0 + STILL_S - 1, parent)
    assert run.look(100.0 + STILL_S, parent)
    assert child[0].wait(10) == -15
    (said,) = run.watchdog.ended
    assert said.startswith(f"process {parent.pid} waited in ")
    assert said.endswith("waits.py:6")
    assert run.look(300.0, parent)  # once


def test_what_works_is_left_alone(child: list[subprocess.Popen], tmp_path: Path) -> None:
    """It may write a checkpoint, or train on as a process of its own."""
    working, run = start(child, WORKS), Run(tmp_path)
    run.write(71, "stop", t=1)
    now_s = 0.0
    for _ in range(5):
        used = sum(working.cpu_times()[:2])
        while sum(working.cpu_times()[:2]) < used + 0.4:  # more than 2 % of a core in 15 s
            time.sleep(0.01)
        assert not run.look(now_s, working)
        now_s += STILL_S
    assert child[0].poll() is None


def test_a_rank_that_only_spins(child: list[subprocess.Popen], tmp_path: Path) -> None:
    """NCCL waits in a busy loop: no step for a minute while another rank was stopped."""
    spinning, run = start(child, WORKS), Run(tmp_path)
    run.write(spinning.pid, "role", role="training", tid=1, world_size=2)
    run.write(spinning.pid, "steps", i=0, n=1, s=0, t=1, w="follow", m=[])
    run.write(71, "stop", t=1)
    assert not run.look(0.0, spinning)
    run.write(spinning.pid, "steps", i=1, n=1, s=1, t=2, w="follow", m=[])
    assert not run.look(NO_STEP_S, spinning)
    assert run.look(2 * NO_STEP_S, spinning)
    assert child[0].wait(10) == -15


def test_nothing_left(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write(71, "stop", t=1)
    assert not run.look(0.0) and not run.look(10 * STILL_S)


def test_what_ignores_sigterm_is_killed(
    child: list[subprocess.Popen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdiag.launch.watchdog.END_WITHIN_S", 0.2)
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    end([start(child, deaf + WAITS)])
    assert child[0].wait(10) == -9
