"""What the training thread waits for other processes, in a job of one that reduces with itself."""

import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tdiag.evidence.from_run import load_run
from tdiag.evidence.from_run.event_files import read_events
from tdiag.evidence.from_run.slices import BACKWARD, COMM
from tdiag.evidence.ranks import CollectiveLine, Collectives
from tdiag.evidence.steps import Phases, Steps
from tests import warm
from tests.probe.harness import environment, watch_code

HEAD = """
import datetime
import os
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=0,
                        world_size=1)
torch.manual_seed(0)
"""

BY_HAND = (
    HEAD
    + """
net = nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    net(torch.randn(2, 4)).sum().backward()
    work = dist.all_reduce(net.weight.grad, async_op=True)
    dist.broadcast(net.bias.grad, 0)
    work.wait()
    dist.barrier()
    optimizer.step()


@torch.compile(fullgraph=True, backend="eager")
def whole(x):
    dist.all_reduce(x)
    return x * 2


@torch.compile(backend="eager")
def broken(x):
    dist.all_reduce(x, async_op=True).wait()
    return x * 2


print(whole(torch.ones(2)), broken(torch.ones(2)))
dist.P2POp(dist.isend, torch.ones(1), 0)


class Own(dist.distributed_c10d.Work):
    def __init__(self):
        super().__init__()


try:
    Own().wait(datetime.timedelta(milliseconds=1))
except RuntimeError as error:
    print(error)
dist.destroy_process_group()
"""
)

# What DistributedDataParallel's own log says of each backward is written to a file.
REDUCED = (
    HEAD
    + """
net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                    nn.Linear(512, 1))
model = nn.parallel.DistributedDataParallel(net)
model._set_ddp_runtime_logging_sample_rate(1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
logged = []
x = torch.randn(8, 64)
for step in range(20):
    optimizer.zero_grad()
    loss = model(x).sum()
    if step:
        data = model._get_ddp_logging_data()
        logged.append(data["backward_comm_time_end"] - data["backward_compute_time_end"])
    loss.backward()
    optimizer.step()
    with model.no_sync():
        model(x).sum().backward()  # nothing is reduced
with open("logged", "w") as file:
    print(*logged, file=file)
dist.destroy_process_group()
"""
)


def watched(code: str, folder: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    (folder / "script.py").write_text(code)
    run_dir = folder / "run"
    base = {**os.environ, "OMP_NUM_THREADS": "1"}
    env = environment(run_dir, base, windows=["baseline"])
    done = warm.run(["script.py"], folder, env)
    assert done.returncode == 0, done.stderr
    (run_dir / "run.json").write_text(json.dumps({"schema": 1, "command": ["python", "x.py"]}))
    return run_dir, done


def records(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    (file,) = (run_dir / "events").glob("*.jsonl")
    return [r for line in file.read_text().splitlines() if (r := json.loads(line))["kind"] == kind]


def test_calls_by_hand_are_marked_by_line_and_nothing_else_changes(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "script.py").write_text(BY_HAND)
    alone = warm.run(["script.py"], plain, dict(os.environ))
    assert alone.returncode == 0, alone.stderr
    run_dir, done = watched(BY_HAND, tmp_path)
    assert (done.stdout, done.stderr) == (alone.stdout, alone.stderr)
    assert not records(run_dir, "failure")
    evidence = load_run(run_dir)
    found, phases, steps = (evidence.get(kind) for kind in (Collectives, Phases, Steps))
    assert found is not None and phases is not None and steps is not None
    times: dict[str, float] = {}
    lines: dict[str, CollectiveLine] = {}
    for line in found.lines:
        times[line.name] = line.count
        lines[line.name] = line
    assert times == {"all_reduce": 1, "broadcast": 1, "wait": 1, "barrier": 1}
    text = BY_HAND.splitlines()
    for name, line in lines.items():
        assert line.at is not None
        assert f"{name}(" in text[line.at.line - 1]
    assert sum(line.wall_ns for line in found.lines) == pytest.approx(phases.wall_ns["comm"])
    assert sum(phases.wall_ns.values()) == pytest.approx(steps.mean_ns, abs=1)


def test_the_wait_for_ddps_gradients_is_what_its_own_log_says(tmp_path: Path) -> None:
    run_dir, _ = watched(REDUCED, tmp_path)
    assert not records(run_dir, "failure")
    assert [r["name"] for r in records(run_dir, "collective")] == ["DistributedDataParallel"]
    logged = [int(ns) for ns in (tmp_path / "logged").read_text().split()]
    (process,) = read_events(run_dir)
    beyond, backwards = [], []
    steps = process.steps
    for row in range(len(steps) - 1):  # row 0 is the loop's second: the first ends at the boundary
        mine = steps.step == row
        marks = list(zip(steps.code[mine].tolist(), steps.at[mine].tolist(), strict=True))
        (began,) = (at for code, at in marks if code == COMM)  # none under no_sync
        (ended,) = (at for code, at in marks if code == COMM + 1)
        backward = max(at for code, at in marks if code == BACKWARD)
        backwards.append(ended - backward)
        # The log's clock stops a little earlier and begins a little later: the last bucket is sent
        # before it begins.
        beyond.append(ended - began - logged[int(steps.number[row]) + 1])
    assert len(beyond) >= 15
    assert min(beyond) >= 0
    assert statistics.median(beyond) < statistics.median(backwards) / 2


SWITCHES = (
    HEAD
    + """
import time
done = []

def told(owner, name, said):
    original = getattr(owner, name)
    def call(*args):
        done.append(said)
        return original(*args)
    setattr(owner, name, call)

told(time, "sleep", "waited")
told(torch.profiler.profile, "start_trace", "starts")
told(torch.profiler.profile, "stop_trace", "stops")
model = nn.Linear(4, 1)
try:
    while True:
        model.zero_grad()
        model(torch.randn(8, 4)).mean().backward()
finally:
    print(*[before + " " + now for before, now in zip(done, done[1:]) if now != "waited"], sep=", ")
"""
)


def test_a_profiler_is_switched_while_no_thread_of_a_group_needs_the_interpreter(
    tmp_path: Path,
) -> None:
    """torch goes through the list of threads without its lock: seen to crash as a gloo thread
    entered itself there."""
    watched = watch_code(
        tmp_path, SWITCHES, profiling=True, windows=["baseline", "trace"], short=True
    )
    switched = watched.out.strip().split(", ")
    assert len(switched) >= 2 and set(switched) == {"waited starts", "waited stops"}, watched.err


ENDS = (
    HEAD
    + """
import time
net = nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    net(torch.randn(2, 4)).sum().backward()
    {reduce}
    optimizer.step()
dist.destroy_process_group()
time.sleep = lambda seconds: print("waits", seconds)
"""
)


@pytest.mark.parametrize(
    ("reduce", "said"), [("dist.all_reduce(net.weight.grad)", "waits 0.1\n"), ("pass", "")]
)
def test_python_does_not_end_before_the_groups_threads_have_let_go(
    reduce: str, said: str, tmp_path: Path
) -> None:
    """torch would abort: a thread that frees a tensor needs the interpreter."""
    run = watch_code(tmp_path, ENDS.format(reduce=reduce), windows=["baseline"])
    assert (run.returncode, run.out) == (0, said), run.err
