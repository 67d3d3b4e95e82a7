"""Live programs under the probe: who runs when, and what is left behind."""

from __future__ import annotations

import fcntl
import os
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tdiag.duel import side, talk
from tdiag.duel.group import FEWEST_ON_DEVICE, Pace, steps_of_a_turn, steps_of_turn, take_turns
from tdiag.duel.side import Program, ProgramFailed, Side
from tdiag.errors import UsageError
from tdiag.gate import counting

from .scripts import TRAIN, program


def until(true: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether it came true in time; nothing is concluded from how long it took."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def test_it_runs_in_its_turns_alone_and_its_workers_too(tmp_path: Path) -> None:
    count = tmp_path / "count"
    with Side(program(tmp_path, WORKERS="1", COUNT=str(count)), tmp_path / "run") as side:
        side.ready()
        family = [side.process.pid, *(c.pid for c in psutil.Process(side.process.pid).children())]
        assert len(family) == 2
        assert until(lambda: all(stopped(pid) for pid in family))
        before = int(count.read_text())
        time.sleep(0.1)
        assert int(count.read_text()) == before
        turn = side.turn(5)
        assert len(turn) == 5 and all(ns >= 2_000_000 for ns in turn)  # it sleeps so long
        assert until(lambda: all(stopped(pid) for pid in family))
        assert int(count.read_text()) == before + 6  # the first one is left out
        assert side.peak_bytes() > 50 << 20
    assert until(lambda: not any(psutil.pid_exists(pid) for pid in family))
    assert side.process.returncode == 0  # ended at a step boundary, as `tdiag run` ends one


@pytest.mark.training
def test_a_ratio_of_turns_is_the_ratio_of_steps(tmp_path: Path) -> None:
    sides = [program(tmp_path, "a", SLEEP="0.005"), program(tmp_path, "b", SLEEP="0.05")]
    a, b = take_turns(sides, tmp_path / "group", Pace(turns=4))
    assert len(a.typical_ns) == len(b.typical_ns) == 4
    # 5 ms against 50 ms of sleep, and the same little work, which others may stretch.
    ratios = [y / x for x, y in zip(a.typical_ns, b.typical_ns, strict=True)]
    assert 1.2 < statistics.median(ratios) < 10.5
    assert a.start_ns > 0 and a.peak_bytes


def test_a_script_that_fails_is_told_with_its_own_traceback(tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed) as caught:
        take_turns([program(tmp_path, FAIL_AT="20")], tmp_path / "group", Pace(turns=4))
    assert "the script itself failed (side: exit code 1)" in caught.value.message
    assert caught.value.output.endswith("ValueError: the script's own fault")
    assert caught.value.exit_code == 2


def test_a_script_that_ends_too_soon_is_told(tmp_path: Path) -> None:
    code = TRAIN.replace("torch.randn(64,", "torch.randn(16,")
    with pytest.raises(UsageError, match="ends too soon"):
        take_turns([program(tmp_path, code=code, EPOCHS="1")], tmp_path / "group", Pace(turns=4))


def test_what_is_measured_before_training_begins_is_forgotten(tmp_path: Path) -> None:
    """An evaluation of 60 batches: each looks like a step until the first backward."""
    evaluation = """
    for _ in range(1):
        for x, y in loader:
            time.sleep(0.001)
    for epoch in"""
    code = TRAIN.replace("\n    for epoch in", evaluation)
    side = program(tmp_path, code=code, SLEEP="0.02")
    (taken,) = take_turns([side], tmp_path / "group", Pace(turns=3))
    assert len(taken.typical_ns) == 3 and min(taken.typical_ns) > 20_000_000


RANKS = """
    import os, sys, time, torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100000):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(float(os.environ.get("SLEEP", "0.005")))
        optimizer.step()
        with open(f"{sys.argv[1]}-{dist.get_rank()}", "w") as file:
            file.write(str(step + 1))
    """
# An optimizer and DistributedDataParallel import what takes longer than torch itself.
BY_HAND = """
    import os, sys, time, torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 2)
    for step in range(100000):
        loss = model(torch.randn(8, 4)).square().mean()
        model.zero_grad()
        loss.backward()
        dist.all_reduce(model.weight.grad)
        time.sleep(float(os.environ.get("SLEEP", "0.005")))
        model.weight.data -= 0.1 * model.weight.grad
    """
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")


def job(folder: Path, name: str, code: str = RANKS, **variables: str) -> Program:
    """Two ranks, as torchrun starts them: each in a session of its own."""
    alone = program(folder, name, code, **variables)
    return replace(alone, command=(*TORCHRUN, alone.command[1], str(folder / name)))


@pytest.mark.training
def test_a_distributed_job_takes_its_turns_as_a_whole(tmp_path: Path) -> None:
    counts = [tmp_path / f"job-{rank}" for rank in (0, 1)]
    with Side(job(tmp_path, "job"), tmp_path / "run") as side:
        first = side.ready()
        family = [side.process, *psutil.Process(side.process.pid).children(recursive=True)]
        assert len(family) == 3
        assert until(lambda: all(stopped(process.pid) for process in family))
        # Both have ended the same steps; the last one's number may not be written down yet.
        before = [int(count.read_text()) for count in counts]
        assert all(first.steps - 1 <= steps <= first.steps for steps in before)
        time.sleep(0.1)
        assert [int(count.read_text()) for count in counts] == before
        turn = side.turn(5)
        assert len(turn) == 5 and all(ns >= 5_000_000 for ns in turn)
        assert until(lambda: all(stopped(process.pid) for process in family))
        assert [int(count.read_text()) for count in counts] == [steps + 6 for steps in before]
    assert until(lambda: not any(psutil.pid_exists(process.pid) for process in family))
    assert side.process.returncode == 0


@pytest.mark.training
def test_two_jobs_are_alive_at_once(tmp_path: Path) -> None:
    """Each with a meeting point of its own, though neither names one."""
    sides = [job(tmp_path, name, BY_HAND, SLEEP=s) for name, s in (("a", "0.005"), ("b", "0.1"))]
    a, b = take_turns(sides, tmp_path / "group", Pace(turns=4))
    assert statistics.median(b.typical_ns) > statistics.median(a.typical_ns)


ALONE = BY_HAND.replace("dist.all_reduce(model.weight.grad)\n", "pass\n")


@pytest.mark.training
@pytest.mark.parametrize(
    ("beside", "told"),
    [
        ("if dist.get_rank(): time.sleep(1000)", "not at one step: rank 1 takes none"),
        ("if not dist.get_rank(): os.environ['SLEEP'] = '0.1'", "do not keep step: rank 1 was"),
    ],
    ids=["one trains", "each for itself"],
)
def test_ranks_that_do_not_train_together_cannot_be_held(
    beside: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk, "RANKS_WITHIN_S", 1.0)
    code = ALONE.replace("    for step", f"    {beside}\n    for step")
    with pytest.raises(UsageError, match=told):
        take_turns([job(tmp_path, "job", code)], tmp_path / "group", Pace(turns=4))
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(p.info["cmdline"])]
    assert not left


def test_ranks_on_several_machines_cannot_be_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side, "HURRY_S", 0.1)  # it waits for the other rank, which never comes
    with pytest.raises(UsageError, match="on several machines"):
        here = program(tmp_path, code=TRAIN, WORLD_SIZE="2", LOCAL_WORLD_SIZE="1")
        take_turns([here], tmp_path / "group", Pace(turns=4))


@pytest.mark.parametrize("when", ["while it starts", "while it is held"])
def test_should_tdiag_be_killed_nothing_stays_behind(when: str, tmp_path: Path) -> None:
    """Not even stopped: the kernel wakes and hangs up an orphaned process group."""
    program(tmp_path)
    code = f"""
import sys
from pathlib import Path
from tdiag.duel.side import Program, Side
folder = Path({str(tmp_path)!r})
script = Program("side", ({sys.executable!r}, "side.py"), folder)
side = Side(script, folder / "run")
{"side.ready()" if when == "while it is held" else ""}
print(side.process.pid, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert parent.stdout is not None
    held = int(parent.stdout.readline())
    assert when == "while it starts" or until(lambda: stopped(held))
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    assert until(lambda: not psutil.pid_exists(held))


@pytest.mark.parametrize(
    ("step_ns", "steps"), [(1e3, 100), (2.5e6, 20), (10e6, 5), (60e6, 3), (300e6, 1)]
)
def test_a_turn_is_some_50_ms(step_ns: float, steps: int) -> None:
    assert steps_of_a_turn(step_ns) == steps


@pytest.mark.parametrize(("step_ns", "steps"), [(1e3, 100), (10e6, 10), (300e6, 10)])
def test_on_a_device_a_turn_has_ten_steps_at_least(step_ns: float, steps: int) -> None:
    assert steps_of_a_turn(step_ns, FEWEST_ON_DEVICE) == steps


@pytest.mark.parametrize("steps", [1, 3, 5, 20])
@pytest.mark.parametrize("period", [2, 3, 4, 6, 10, 21])
def test_work_of_every_nth_step_is_measured_as_often_as_it_is_done(steps: int, period: int) -> None:
    """Each turn leaves its first step out. In turns of one length it was all of it, or none."""
    at, counted, done = 0, 0, 0
    for turn in range(400):
        at += 1
        length = steps_of_turn(turn, steps)
        counted += length
        done += sum(step % period == 0 for step in range(at, at + length))
        at += length
    assert done / counted == pytest.approx(1 / period, rel=0.15)


# A device that lets one process in at a time: who holds the file has it.
ONE_AT_A_TIME = """
    import fcntl, os
    device = open(os.environ["DEVICE"], "w")
    try:
        fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RuntimeError(os.environ["REFUSAL"])
"""
REFUSAL = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"


@pytest.mark.parametrize(
    ("output", "no_room"),
    [
        (REFUSAL, True),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.", True),
        ("RuntimeError: CUDA error: out of memory", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("RuntimeError: CUDA error: device-side assert triggered", False),
        ("RuntimeError: DataLoader worker is killed by signal: Bus error. out of shm", False),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
         False),
    ],
)  # fmt: skip
def test_a_device_without_room_is_told_from_other_failures(output: str, no_room: bool) -> None:
    assert ProgramFailed("now", 1, output).no_room is no_room


@pytest.mark.training
def test_what_the_device_has_no_room_for_is_measured_one_after_the_other(tmp_path: Path) -> None:
    code = textwrap.dedent(ONE_AT_A_TIME) + textwrap.dedent(TRAIN)
    shared = {"DEVICE": str(tmp_path / "device"), "REFUSAL": REFUSAL, "SLEEP": "0.001"}
    sides = [program(tmp_path, name, code, **shared) for name in ("a", "b")]
    taken = take_turns(sides, tmp_path / "group", Pace(turns=4))
    assert [one.alone for one in taken] == [True, True]
    assert [len(one.typical_ns) for one in taken] == [4, 4]


def test_what_does_its_counting_alone_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], str]] = []

    def beside(programs: list[Program], folder: Path) -> list[str]:
        names = [p.name for p in programs]
        asked.append((names, folder.name))
        if len(names) > 1:
            raise ProgramFailed("b", 1, REFUSAL)
        return names

    monkeypatch.setattr(counting, "_beside", beside)
    found = counting.count([program(tmp_path, name) for name in "ab"], tmp_path)
    assert list(map(str, found)) == ["a", "b"]
    assert asked == [(["a", "b"], tmp_path.name), (["a"], "alone"), (["b"], "alone")]


def test_a_device_that_somebody_else_holds_is_the_scripts_failure(tmp_path: Path) -> None:
    code = textwrap.dedent(ONE_AT_A_TIME) + textwrap.dedent(TRAIN)
    shared = {"DEVICE": str(tmp_path / "device"), "REFUSAL": REFUSAL}
    with (tmp_path / "device").open("w") as device:
        fcntl.flock(device, fcntl.LOCK_EX)
        with pytest.raises(ProgramFailed, match="the script itself failed"):
            take_turns([program(tmp_path, n, code, **shared) for n in "ab"], tmp_path / "group",
                       Pace(turns=3))  # fmt: skip
