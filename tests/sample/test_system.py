"""system.jsonl holds what the program and its children used, and nothing of tdiag's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tdiag.sample.system import SystemSampler
from tests.launch.harness import wait_for

PARENT_AND_WORKER = """
import multiprocessing, sys
def work():
    held = bytearray(50 << 20)
    while True:
        sum(range(1000))
if __name__ == "__main__":
    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    print(worker.pid, flush=True)
    sys.stdin.read()
    worker.kill()
    worker.join()
    import os, time
    os.close(1)
    time.sleep(60)
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", PARENT_AND_WORKER], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    yield child
    for process in psutil.Process(child.pid).children() if child.poll() is None else []:
        process.kill()
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        pipe.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def sampled(program: subprocess.Popen[str], tmp_path: Path) -> tuple[str, Path, SystemSampler]:
    """The worker's pid, the file of samples, and who writes it."""
    assert program.stdout is not None
    worker = program.stdout.readline().strip()
    path = tmp_path / "system.jsonl"
    return worker, path, SystemSampler(path, program.pid)


def test_the_tree_is_the_programs_and_counters_grow(
    program: subprocess.Popen[str], tmp_path: Path
) -> None:
    worker, path, sampler = sampled(program, tmp_path)

    def used() -> int:
        sampler.sample()
        return int(lines(path)[-1]["procs"].get(worker, [0])[0])

    first = used()
    wait_for(lambda: used() > first + 50_000_000)
    machine, *samples = lines(path)
    assert machine["kind"] == "machine" and {s["kind"] for s in samples} == {"sample"}
    assert set(samples[-1]["procs"]) == set(samples[-1]["queued"]) == {str(program.pid), worker}
    assert str(os.getpid()) not in samples[-1]["procs"]
    wait_for(lambda: used() and lines(path)[-1]["procs"][worker][1] > 50 << 20)
    begin, end = samples[0], lines(path)[-1]
    assert end["t"] > begin["t"]
    assert end["busy_ns"] - begin["busy_ns"] >= 40_000_000  # the worker's share, less a tick
    assert 0 < end["ram_available"] <= machine["ram_total"]
    assert 0 < machine["cores_allowed"] <= machine["cores_machine"]
    assert machine["gpus"] is not None or machine["gpus_missing"]


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs the kernel's file")
def test_what_a_child_wrote_itself_is_told_from_what_it_shares(
    program: subprocess.Popen[str], tmp_path: Path
) -> None:
    """It does not grow its resident memory: pages that a fork shares are resident in both."""
    worker, path, sampler = sampled(program, tmp_path)

    def private() -> int:
        sampler.next_scan_s = 0.0
        sampler.sample()
        return int(lines(path)[-1]["private"].get(worker, 0))

    wait_for(lambda: private() > 50 << 20)
    last = lines(path)[-1]
    assert last["private"][worker] <= last["procs"][worker][1]
    assert str(program.pid) not in last["private"]


def test_a_child_that_has_gone_is_left_out(program: subprocess.Popen[str], tmp_path: Path) -> None:
    assert program.stdout is not None and program.stdin is not None
    worker = int(program.stdout.readline())
    path = tmp_path / "system.jsonl"
    sampler = SystemSampler(path, program.pid)
    sampler.sample()
    assert str(worker) in lines(path)[-1]["procs"]
    program.stdin.close()
    program.stdout.read()
    sampler.sample()
    assert str(worker) not in lines(path)[-1]["procs"]


def test_a_program_that_has_ended_and_a_full_disk_are_no_errors(tmp_path: Path) -> None:
    sampler = SystemSampler(tmp_path / "gone" / "system.jsonl", 2**22 + 1)
    assert not sampler.writing
    sampler.sample()
    sampler.close()
    sampler = SystemSampler(tmp_path / "system.jsonl", 2**22 + 1)
    sampler.sample()
    assert lines(tmp_path / "system.jsonl")[-1]["procs"] == {}


def test_a_busy_process_besides_the_program_is_named_and_the_programs_own_are_not(
    program: subprocess.Popen[str], tmp_path: Path
) -> None:
    """It is no child of ours: what tdiag started itself is left out."""
    code = "import os\nif os.fork(): os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\n"
    code += "os.close(1)\nwhile os.getppid(): sum(range(1000))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                          check=True)  # fmt: skip
    pid = int(done.stdout)
    try:
        sampler = SystemSampler(tmp_path / "system.jsonl", program.pid)

        def found() -> bool:
            sampler.next_scan_s = 0.0
            sampler.sample()
            return str(pid) in lines(tmp_path / "system.jsonl")[-1]["others"]

        wait_for(found)
        last = lines(tmp_path / "system.jsonl")[-1]
        used, wanted, threads, name, torch = last["others"][str(pid)]
        assert (threads, torch) == (1, False)
        assert name.startswith("python")
        assert used > 0 and wanted > 0
        assert not set(last["others"]) & set(last["procs"])
    finally:
        os.kill(pid, 9)
