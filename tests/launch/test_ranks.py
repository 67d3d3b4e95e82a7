"""Which rank failed first, and where each one stands when a job makes no steps any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tdiag.launch.failed_rank import NO_STEP_S, RankWatch, standing
from tdiag.launch.progress import Progress
from tdiag.sample.pyspy import Frame

from .harness import NO_ROOF

AT = ["/u/train.py", 17, "load"]


class Job:
    """Of two ranks, each a process that lives until it is killed. ``world``: ranks of the job, of
    which others are on other machines."""

    def __init__(self, folder: Path, world: int = 2) -> None:
        self.world = world
        (folder / "events").mkdir()
        self.folder = folder
        self.progress = Progress(folder)
        self.ranks = RankWatch(self.progress)
        self.processes = [
            subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
            for _ in range(2)
        ]
        for rank in range(2):
            self.write(rank, "role", role="training", tid=1, rank=rank, world_size=world)
        self.ranks.tick()

    def write(self, which: int, kind: str, **fields: object) -> None:
        path = self.folder / "events" / f"{self.processes[which].pid}.jsonl"
        with path.open("a") as file:
            file.write(json.dumps({"kind": kind, **fields}, separators=(",", ":")) + "\n")
        self.progress.look()

    def steps(self, rank: int, count: int) -> None:
        self.write(rank, "steps", i=0, n=count, s=0, t=1, w="baseline", m=[])

    def died(self, rank: int, what: str, peers: str = "") -> None:
        self.write(
            rank, "died", t=time.perf_counter_ns(), step=59, rank=rank, world_size=self.world,
            what=what, at=AT, peers=peers,
        )  # fmt: skip

    def end(self, *ranks: int) -> None:
        """Before tdiag looks again."""
        for rank in ranks:
            self.processes[rank].kill()
            self.processes[rank].wait()
        self.ranks.tick()


@pytest.fixture(params=[2])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    found = Job(tmp_path, request.param)
    yield found
    for process in found.processes:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
    found.ranks.close()


def test_the_rank_whose_own_exception_came_first(job: Job) -> None:
    job.steps(0, 59)
    job.steps(1, 59)
    job.died(1, "ValueError")
    job.died(0, "RuntimeError", peers="closed")
    job.end(0)
    assert job.ranks.first_failure() == (
        "rank 1 failed first, after 60 steps: ValueError at train.py:17"
    )


def test_a_lost_connection_is_never_the_cause(job: Job) -> None:
    """Rank 0 heard of it before tdiag looked again."""
    job.steps(1, 59)
    job.died(0, "RuntimeError", peers="closed")
    job.end(1)
    assert job.ranks.first_failure() == (
        "rank 1 ended first, after 60 steps or more, without a Python error message: it was killed"
    )


def test_a_rank_that_the_launcher_killed_is_not_blamed(job: Job) -> None:
    """Rank 1 hung until rank 0 gave up waiting for it."""
    job.steps(1, 59)
    job.died(0, "RuntimeError", peers="timed out")
    job.end(0)
    job.end(1)
    assert job.ranks.first_failure() == ""


def test_of_two_ends_in_one_look_the_one_that_did_not_lose_the_other_is_first(job: Job) -> None:
    job.steps(1, 59)
    job.died(0, "RuntimeError", peers="closed")
    job.end(0, 1)
    assert job.ranks.first_failure().startswith("rank 1 ended first, after 60 steps or more")


def test_a_hung_rank_that_was_killed_in_the_same_look_is_not_blamed(job: Job) -> None:
    job.steps(1, 59)
    job.died(0, "RuntimeError", peers="timed out")
    job.end(0, 1)
    assert job.ranks.first_failure() == ""


def test_of_two_silent_ends_in_one_look_none_is_named(job: Job) -> None:
    job.steps(1, 59)
    job.end(0, 1)
    assert job.ranks.first_failure() == ""


def test_of_two_that_ended_silently_the_first(job: Job) -> None:
    job.end(1)
    job.write(0, "finish", t=1, why="exit", residue=None)
    job.end(0)
    assert "rank 1 ended first, before its second step" in job.ranks.first_failure()


def test_a_rank_that_leaves_early_is_no_crash(job: Job) -> None:
    job.steps(1, 59)
    job.write(1, "finish", t=1, why="exit", residue=None)
    job.end(1)
    job.died(0, "RuntimeError", peers="closed")
    assert "without an exception: it called exit, or ran out of data before the others" in (
        job.ranks.first_failure()
    )


def started_again(job: Job) -> None:
    """Rank 1 fails, and torchrun starts both ranks again."""
    for rank in range(2):
        job.write(rank, "process", t=1)
        job.steps(rank, 59)
    job.died(1, "ValueError")
    job.died(0, "RuntimeError", peers="closed")
    for rank in range(2):
        job.end(rank)
        job.processes[rank] = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE
        )
        job.write(rank, "process", t=time.perf_counter_ns())
        job.write(rank, "role", role="training", tid=1, rank=rank, world_size=job.world)
    job.ranks.tick()


def test_a_job_that_was_started_again_says_why_and_is_watched_as_a_new_one(job: Job) -> None:
    first = [process.stdin for process in job.processes]
    started_again(job)
    for pipe in first:
        assert pipe is not None
        pipe.close()
    assert job.ranks.started_again() == [
        "the ranks failed and were restarted: rank 1 failed first, after 60 steps:"
        " ValueError at train.py:17"
    ]
    assert {rank.file.pid for rank in job.progress.ranks()} == {p.pid for p in job.processes}
    assert job.ranks.first_failure() == ""
    job.end(0)
    assert job.ranks.first_failure().startswith("rank 0 ended first, before its second step")


def test_a_job_after_one_that_went_well_is_not_called_a_restart(job: Job) -> None:
    for rank in range(2):
        job.write(rank, "process", t=1)
        job.write(rank, "finish", t=2, why="exit", residue=None)
    path = job.folder / "events" / "7.jsonl"
    again = {"kind": "role", "role": "training", "tid": 1, "rank": 0, "world_size": 2}
    with path.open("a") as file:
        for line in ({"kind": "process", "t": 3}, again):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
    job.progress.look()
    assert len(job.progress.jobs()) == 2 and job.ranks.started_again() == []


several_machines = pytest.mark.parametrize("job", [4], indirect=True)


@several_machines
def test_on_several_machines_the_first_of_this_one_is_named(job: Job) -> None:
    job.steps(1, 59)
    job.died(1, "ValueError")
    job.died(0, "RuntimeError", peers="closed")
    job.end(1)
    assert job.ranks.first_failure().startswith(
        "rank 1 failed first of the ranks on this machine, after 60 steps: ValueError"
    )


@several_machines
def test_a_silent_end_may_be_the_doing_of_another_machine(job: Job) -> None:
    """The launcher ends all of its ranks when one elsewhere has failed."""
    job.steps(1, 59)
    job.end(1)
    assert job.ranks.first_failure() == ""


@several_machines
def test_ranks_that_wait_for_another_machine_are_not_called_hung(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank that works may be there, so nothing here is ended."""
    monkeypatch.setattr(standing, "__defaults__", (lambda pid: READS,))
    job.steps(0, 5)
    assert job.ranks.look(0.0) == ""
    said = job.ranks.look(float(NO_STEP_S))
    assert said.startswith("no rank on this machine has ended a step for 60 s: rank 0 after 6")
    assert not job.ranks.hangs()


def test_a_job_of_this_machine_alone_hangs(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdiag.launch.failed_rank.standing", lambda ranks: "it stands")
    job.steps(0, 5)
    job.ranks.look(0.0)
    assert not job.ranks.hangs()
    job.ranks.look(float(NO_STEP_S))
    assert job.ranks.hangs()


def test_one_process_alone_is_not_called_a_rank(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    died = {"kind": "died", "t": 1, "rank": 0, "world_size": 1, "what": "ValueError", "at": AT}
    (tmp_path / "events" / "71.jsonl").write_text(json.dumps(died, separators=(",", ":")) + "\n")
    progress = Progress(tmp_path)
    progress.look()
    assert RankWatch(progress).first_failure() == ""


def test_a_job_that_makes_no_steps_is_reported_once(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdiag.launch.failed_rank.standing", lambda ranks: "it stands")
    assert job.ranks.look(0.0) == job.ranks.look(1000.0) == ""  # it has not begun
    job.steps(0, 5)
    assert job.ranks.look(1000.0) == ""
    assert job.ranks.look(1000.0 + NO_STEP_S - 1) == ""
    assert job.ranks.look(1000.0 + NO_STEP_S) == "it stands"
    assert job.ranks.look(1001.0 + NO_STEP_S) == ""


def test_a_job_that_steps_or_is_over_does_not_stand(job: Job) -> None:
    job.steps(0, 5)
    assert job.ranks.look(0.0) == ""
    job.steps(1, 5)
    assert job.ranks.look(NO_STEP_S) == ""
    job.write(0, "finish", t=1, why="complete", residue=None)
    assert job.ranks.look(3 * NO_STEP_S) == ""


USER = Frame("main", "/u/train.py", 25)
WAITS = [Frame("_engine_run_backward", "/v/site-packages/torch/autograd/graph.py", 979), USER]
READS = [Frame("read", "/v/site-packages/h5py/_hl/dataset.py", 7), USER]


def test_the_rank_that_does_not_communicate_is_waited_for(job: Job) -> None:
    job.steps(0, 59)
    job.steps(1, 58)
    stacks = {job.processes[0].pid: WAITS, job.processes[1].pid: READS}
    assert standing(job.progress.ranks(), stacks.__getitem__) == (
        "no rank has ended a step for 60 s: the others wait for rank 1; rank 0 after 60 steps or"
        " more in _engine_run_backward (autograd/graph.py:979), called at u/train.py:25; rank 1"
        " after 59 steps or more in read (_hl/dataset.py:7), called at u/train.py:25"
    )


@pytest.mark.parametrize("stacks", [(WAITS, WAITS), (READS, READS), (WAITS, [])])
def test_where_it_is_unclear_nobody_is_blamed(job: Job, stacks: tuple[list[Frame], ...]) -> None:
    of = {process.pid: stack for process, stack in zip(job.processes, stacks, strict=True)}
    assert "wait for" not in standing(job.progress.ranks(), of.__getitem__)


CODE = """
import os
import signal
import sys
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def load(step):
    time.sleep(0.01)
    if step == 60 and dist.get_rank() == 1:
        if sys.argv[1] == "raises":
            raise ValueError("broken file")
        if sys.argv[1] == "is-killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[1] == "runs-out":
            sys.exit()
        time.sleep(1000)
    return torch.randn(8, 64)


for step in range(1_000_000):
    model(load(step)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run(kind: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(CODE)
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    job = [torchrun, "--standalone", "--nproc-per-node", "2", "train.py", kind]
    tdiag = [sys.executable, "-m", "tdiag", "run", "--profiling", "--out", "run", "--", *job]
    return subprocess.run(
        tdiag, cwd=folder, capture_output=True, text=True, timeout=290, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(NO_ROOF)},
    )  # fmt: skip


def line_of(words: str) -> int:
    return next(n for n, line in enumerate(CODE.splitlines(), 1) if words in line)


def notes_of(folder: Path) -> list[str]:
    found: list[str] = json.loads((folder / "run" / "run.json").read_text())["notes"]
    return found


@pytest.mark.slow
def test_a_real_job_that_hangs_is_ended_and_says_where(tmp_path: Path) -> None:
    done = run("hangs", tmp_path)
    assert done.returncode != 0
    (note,) = (n for n in notes_of(tmp_path) if n.startswith("no rank has ended a step"))
    assert "the others wait for rank 1; rank 0 after " in note
    assert "rank 1 after" in note and note.endswith(f"train.py:{line_of('sleep(1000)')})")
    assert "no process of the job did anything any longer, so tdiag ended it" in notes_of(tmp_path)
    assert json.loads((tmp_path / "run" / "diagnosis.json").read_text())["step"]["count"] > 1


@pytest.mark.training
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("raises", "failed first, after 60 steps: ValueError at train.py:"),
        ("is-killed", "or more, without a Python error message: it was killed"),
        (
            "runs-out",
            "ended first, after 60 steps, without an exception: it called exit, or ran out",
        ),
    ],
)
def test_a_real_job_keeps_its_exit_code_its_traceback_and_its_evidence(
    kind: str, said: str, tmp_path: Path
) -> None:
    done = run(kind, tmp_path)
    assert done.returncode == 1  # torchrun's own
    assert "by peer" in done.stderr  # closed, or reset
    assert ("ValueError: broken file" in done.stderr) is (kind == "raises")
    notes = notes_of(tmp_path)
    (note,) = (n for n in notes if n.startswith("rank 1 "))
    assert said in note
    assert (f"train.py:{line_of('raise ValueError')}" in note) is (kind == "raises")
    found = json.loads((tmp_path / "run" / "diagnosis.json").read_text())
    assert found["step"]["count"] > 1  # of the steps before it
    trained = [p for p in (tmp_path / "run" / "events").iterdir() if '"steps"' in p.read_text()]
    assert len(trained) == 2
