"""`tdiag attach`: a process that already runs is diagnosed, and goes on as if nothing had been."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tdiag.launch import attaching
from tdiag.sample.running import find
from tests.launch.harness import TDIAG, latest, script, tdiag, wait_for

# A training that goes on until a file appears, prints, and ends with a code of its own.
TRAINING = """
import multiprocessing, os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

multiprocessing.set_start_method("fork")  # the script guards nothing by __main__
torch.set_num_threads(1)
KIND, WORKERS = sys.argv[1], int(sys.argv[2])

class Samples(Dataset):
    def __len__(self):
        return 10**9
    def __getitem__(self, i):
        if KIND == "sleep":
            time.sleep(0.002)  # SLEEPS
        elif KIND == "cpu":
            sum(k * k for k in range(20000))  # COMPUTES
        return torch.zeros(64)

wide = 1024 if KIND == "compute" else 8
model = torch.nn.Sequential(torch.nn.Linear(64, wide), torch.nn.Linear(wide, wide))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, batch in enumerate(DataLoader(Samples(), batch_size=16, num_workers=WORKERS)):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()  # BACKWARD
    optimizer.step()
    if step == 2:
        print("trains", flush=True)
    if os.path.exists("enough"):
        print("done", flush=True)
        sys.exit(7)
"""

# To `tdiag attach` a process that has mapped a libtorch is one that may train.
HOLDER = """
import mmap, os, sys, time
with open("libtorch.so", "rb") as file:
    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
{before}
print("trains", flush=True)
def spin():
    while not os.path.exists("enough"):
        sum(range(1000))
spin()
print("done", flush=True)
sys.exit(7)
"""


class Target:
    """A program in the background; ``lines`` of its output as they come."""

    def __init__(self, folder: Path, *words: str, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        while self.process.stdout.readline().strip() != "trains":
            assert self.process.poll() is None

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> tuple[str, int]:
        """What it printed besides, and its exit code."""
        (self.folder / "enough").touch()
        said, _ = self.process.communicate(timeout=60)
        return said, self.process.returncode


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    targets: list[Target] = []

    def start(*words: str, env: dict[str, str] | None = None) -> Target:
        targets.append(Target(tmp_path, *words, env=env))
        return targets[-1]

    yield start
    for target in targets:
        if target.process.poll() is None:
            below = psutil.Process(target.pid).children(recursive=True)  # torchrun's ranks lead
            os.killpg(target.pid, signal.SIGKILL)  # groups of their own
            for process in below:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        target.process.communicate()


def holder(folder: Path, before: str = "", name: str = "held.py") -> str:
    (folder / "libtorch.so").write_bytes(b"x" * 4096)
    return script(folder, HOLDER.format(before=before), name)


def line_of(mark: str) -> int:
    return next(n for n, line in enumerate(TRAINING.splitlines(), 1) if mark in line)


def diagnosis(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((latest(folder) / "diagnosis.json").read_text())
    return found


def attached(folder: Path, pid: int, *words: str, seconds: int = 8) -> dict[str, Any]:
    """The diagnosis of this process; eight seconds are the fewest that can be asked for."""
    done = tdiag("attach", str(pid), "--time-budget", str(seconds), "--json", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found == diagnosis(folder)
    return found


def test_a_dataset_that_sleeps_below_a_shell(tmp_path: Path, started: Any) -> None:
    # By hand: an optimizer imports what takes longer than torch itself.
    by_hand = TRAINING.replace("torch.optim.SGD(model.parameters(), lr=0.01)", "model")
    script(tmp_path, by_hand.replace("optimizer.step()", "model[0].weight.data -= 0.01"))
    shell = started("sh", "-c", f"{sys.executable} train.py sleep 0; echo code $?; exit 3")
    found = attached(tmp_path, shell.pid, "--outside")
    verdict, watched = found["verdict"], found["watched"]
    assert verdict["class"] == "io", verdict
    assert "something other than storage" in verdict["summary"]
    assert f"train.py:{line_of('SLEEPS')}" in verdict["summary"]
    assert watched["activities"][0]["name"] == "data_wait"
    assert sum(a["frac"] for a in watched["activities"]) == pytest.approx(1)
    assert watched["fetching"]["workers"] == 0
    assert found["step"] is None and found["findings"] == [] and found["budget"] == []
    assert {rule["missing"] for rule in found["abstained"]} == {
        "tdiag attach sees no steps: the probe was not in the process when it started"
    }
    assert any("does not train" in note["text"] for note in found["notes"])
    assert shell.end() == ("done\ncode 7\n", 3)
    assert (latest(tmp_path) / "report.html").stat().st_size > 10_000
    again = tdiag("report", "--format", "line", cwd=tmp_path)
    assert again.stdout.startswith("I/O-bound: "), again.stderr


@pytest.mark.training
def test_workers_that_compute(tmp_path: Path, started: Any) -> None:
    script(tmp_path, TRAINING)
    target = started(sys.executable, "train.py", "cpu", "2")
    found = attached(tmp_path, target.pid, "--outside")
    fetching = found["watched"]["fetching"]
    assert found["verdict"]["class"] == "cpu", found["verdict"]
    assert fetching["workers"] == 2 and fetching["fetch_frac"] > 0.5
    assert fetching["at"]["line"] == line_of("COMPUTES")
    assert target.end() == ("done\n", 7)


@pytest.mark.training
def test_a_loop_that_computes_waits_for_nothing(tmp_path: Path, started: Any) -> None:
    """Whether one thread's computing is work, samples cannot tell: no verdict, but the shares."""
    script(tmp_path, TRAINING)
    target = started(sys.executable, "train.py", "compute", "0")
    found = attached(tmp_path, target.pid, "--outside")
    shares = {a["name"]: a for a in found["watched"]["activities"]}
    assert found["verdict"]["class"] == "unknown"
    assert "forward, backward and optimizer" in found["verdict"]["summary"]
    assert shares["backward"]["at"]["line"] == line_of("BACKWARD")
    assert shares["backward"]["frac"] > shares.get("data_wait", {"frac": 0})["frac"]
    assert target.end() == ("done\n", 7)


RANKS = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
RANK = dist.get_rank()

class Samples(Dataset):
    def __len__(self):
        return 10**9
    def __getitem__(self, i):
        if RANK == 1:
            time.sleep(0.002)  # SLEEPS
        return torch.zeros(64)

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, batch in enumerate(DataLoader(Samples(), batch_size=8)):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    enough = torch.tensor(float(os.path.exists("enough")))
    dist.all_reduce(enough)
    if step == 2 and RANK == 0:
        print("trains", flush=True)
    if enough:
        break
dist.destroy_process_group()
import time; time.sleep(0.5)  # torch aborts a Python that ends before gloo's threads
"""


@pytest.mark.training
def test_all_ranks_of_a_job_and_the_one_that_the_others_wait_for(
    tmp_path: Path, started: Any
) -> None:
    script(tmp_path, RANKS)
    launcher = started(
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "train.py",
    )  # fmt: skip
    found = attached(tmp_path, launcher.pid, "--torchrun", "--outside")
    watched = found["watched"]
    assert [rank["rank"] for rank in watched["ranks"]] == [0, 1]
    assert watched["pid"] == watched["ranks"][1]["pid"]
    assert found["verdict"]["class"] == "io", found["verdict"]
    assert "The other ranks wait for rank 1" in found["verdict"]["summary"]
    assert found["environment"]["rank"] == 1 and found["environment"]["world_size"] == 2

    alone = attached(tmp_path, launcher.pid, "--outside")
    assert alone["watched"]["pid"] == watched["ranks"][0]["pid"]
    assert any("--torchrun" in note["text"] for note in alone["notes"])
    assert launcher.end()[1] == 0


def test_ctrl_c_ends_the_watching_and_reports(tmp_path: Path, started: Any) -> None:
    target = started(sys.executable, holder(tmp_path))
    watching = subprocess.Popen(
        [*TDIAG, "attach", str(target.pid), "--time-budget", "600"], cwd=tmp_path,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stderr is not None
    assert "watching process" in watching.stderr.readline()
    watching.send_signal(signal.SIGINT)
    said = watching.communicate(timeout=60)[1]
    assert watching.returncode == 0, said
    assert "the watching was interrupted" in said
    assert target.end() == ("done\n", 7)


def test_a_target_that_ends_meanwhile_is_reported(tmp_path: Path, started: Any) -> None:
    target = started(sys.executable, holder(tmp_path))
    watching = subprocess.Popen(
        [*TDIAG, "attach", str(target.pid), "--time-budget", "600"], cwd=tmp_path,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stderr is not None
    assert "watching process" in watching.stderr.readline()
    assert target.end() == ("done\n", 7)
    said = watching.communicate(timeout=60)[1]
    assert watching.returncode == 0, said
    assert "the process ended while it was watched" in said


def test_nothing_is_left_behind_even_when_tdiag_is_killed(tmp_path: Path, started: Any) -> None:
    target = started(sys.executable, holder(tmp_path))
    watching = subprocess.Popen(
        [*TDIAG, "attach", str(target.pid), "--time-budget", "8"], cwd=tmp_path,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stderr is not None
    while "sampling stacks" not in watching.stderr.readline():
        assert watching.poll() is None
    tools = psutil.Process(watching.pid).children()
    assert [tool.name() for tool in tools] == ["py-spy"]
    watching.kill()
    watching.communicate()
    wait_for(lambda: not any(_runs(tool) for tool in tools))
    assert target.end() == ("done\n", 7)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_launcher_is_no_training_and_a_worker_neither(tmp_path: Path, started: Any) -> None:
    name = holder(tmp_path)
    launching = f"""
import subprocess
ranks = [
    subprocess.Popen([sys.executable, "{name}"], env={{**os.environ, "RANK": str(n)}},
                     stdout=subprocess.DEVNULL)
    for n in (1, 0)
]
if not os.fork():  # as a DataLoader's worker
    time.sleep(600)
time.sleep(1)
"""
    launcher = started(sys.executable, holder(tmp_path, launching, "launcher.py"))
    wait_for(lambda: len(find(launcher.pid)) == 2)
    found = find(launcher.pid)
    assert [process.rank for process in found] == [0, 1]
    assert {process.script for process in found} == {name}
    assert [process.pid for process in find(found[0].pid)] == [found[0].pid]


def refused(*words: str, cwd: Path) -> str:
    """What is said of a process that cannot be watched: two lines at most, exit code 2."""
    done = tdiag("attach", *words, cwd=cwd)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) <= 2 and "Traceback" not in done.stderr
    assert not (cwd / ".tdiag").exists()
    return done.stderr


def test_a_process_that_does_not_exist(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert f"there is no process {gone.pid}" in refused(str(gone.pid), cwd=tmp_path)


def test_a_process_that_has_ended_and_was_not_waited_for(tmp_path: Path) -> None:
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    wait_for(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_ZOMBIE)
    assert "has ended already" in refused(str(zombie.pid), cwd=tmp_path)
    zombie.wait()


def test_a_process_without_torch(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "600"])
    try:
        said = refused(str(other.pid), cwd=tmp_path)
    finally:
        other.kill()
        other.wait()
    assert "(sleep) has not loaded torch" in said


def test_a_process_that_is_traced_already(tmp_path: Path, started: Any) -> None:
    target = started(sys.executable, holder(tmp_path))
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    if ptrace(16, target.pid, None, None):  # PTRACE_ATTACH
        pytest.skip(f"ptrace: {os.strerror(ctypes.get_errno())}")
    try:
        os.waitpid(target.pid, 0)
        assert f"already traced by process {os.getpid()}" in refused(str(target.pid), cwd=tmp_path)
    finally:
        ptrace(17, target.pid, None, None)  # PTRACE_DETACH
    assert target.end() == ("done\n", 7)


def test_what_to_allow_where_the_system_refuses(
    tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = started(sys.executable, holder(tmp_path))
    why = "the system does not let py-spy read the process; to allow it: `--cap-add SYS_PTRACE`"
    monkeypatch.setattr(attaching, "why_refused", lambda pid: why)
    with pytest.raises(attaching.RunError) as error:
        attaching.attach(target.pid, time_budget_s=2, out=tmp_path / "run")
    assert str(target.pid) in error.value.message and "SYS_PTRACE" in error.value.hint
    assert error.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_a_url_is_no_folder_to_write_to(tmp_path: Path) -> None:
    assert "needs a folder" in refused(str(os.getpid()), "--out", "s3://bucket/run", cwd=tmp_path)
    assert not list(tmp_path.iterdir())
