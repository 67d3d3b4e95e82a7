"""A run that goes on after its windows: what its late windows see, keep and leave alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.steps import SlowingDown
from tdiag.model.diagnosis import Finding
from tdiag.probe.loaders import pause_ns
from tdiag.probe.patches import GOES, RETURNS, STAYS, Patches

from .harness import Watched, watch_code

# Goes on until the probe has written so many late windows, however busy the machine is.
GOES_ON = """
import os, time
file, begun = f"{os.environ['TDIAG_RUN']}/events/{os.getpid()}.jsonl", time.perf_counter()
def goes_on(windows=30):
    late = open(file).read().count('"kind":"late"') if os.path.exists(file) else 0
    return late < windows and time.perf_counter() - begun < 60
"""
# STEP is what it does after each step.
LOOP = (
    GOES_ON
    + """
import json, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
data = TensorDataset(torch.randn(4096, 32), torch.randn(4096, 1))
history, ended, losses, epoch = [], [], 0.0, 0
while goes_on():
    epoch += 1
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        ended.append(time.perf_counter_ns())
        scheduler.step()
        history.append(loss.item())
        STEP
json.dump(ended, open("ended.json", "w"))
"""
)
GROWS = "losses += sum(x * x for x in history) / len(history)"
STARTS_AGAIN = "losses += sum(x * x for x in history[-(len(history) % 1000):]) / 1000"
HEALTHY = "losses += sum(x * x for x in history[-100:]) / 100"
# Its backward waits longer from step to step, its forward always as long: other programs disturb
# waits less than work.
WAITS = (
    GOES_ON
    + """
import sys, time, torch
class Waits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(2e-3)
        return x * 1
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(step * 2e-5)
        return gradient
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
step = 0
while step % 8 or goes_on():
    step += 1
    x = torch.randn(256, 8)
    loss = Waits.apply(model(x)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)


def trained(folder: Path, code: str) -> Watched:
    run = watch_code(folder, code, windows=["baseline"], short=True)
    assert run.returncode == 0, run.err
    assert run.of("failure") == []
    return run


def slowing_down(run: Watched) -> Finding | None:
    return next((f for f in diagnose(run.evidence()).findings if f.code == "TD714"), None)


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    folder = tmp_path_factory.mktemp("growing")
    return trained(folder, LOOP.replace("STEP", GROWS))


def test_a_list_that_grows_is_named_by_its_phase_with_its_slope(growing: Watched) -> None:
    found = growing.evidence().get(SlowingDown)
    assert found is not None and found.late
    assert found.phases[0].phase == "after_step"
    finding = slowing_down(growing)
    assert finding is not None and "what follows the optimizer's step" in finding.summary


def test_the_steps_between_late_windows_are_counted_one_by_one(growing: Watched) -> None:
    """The number of each step is that of the script, whose scheduler wraps ``step``."""
    ended = json.loads((growing.run_dir.parent / "ended.json").read_text())
    late = growing.of("late")
    assert len(late) >= 8
    apart = {sum(t < r["t"] for t in ended) - (r["i"] + r["n"]) for r in late}
    assert len(apart) == 1  # those before the first boundary


def test_what_is_kept_does_not_grow_with_the_steps(growing: Watched) -> None:
    """A record comes when the run has lasted a twentieth longer, whatever its steps."""
    late = growing.of("late")
    last = late[-1]["t"]
    assert {r["n"] for r in late} == {8}
    assert max(len(json.dumps(r)) for r in late) < 6_000
    began = growing.of("process")[0]["t"]
    ages = [r["t"] - began for r in late]
    assert all(age > 1.04 * before for before, age in pairwise(ages)), ages
    # Neither epochs nor steps leave anything else.
    finished = growing.of("finish")[0]["t"]
    others = [r["kind"] for r in growing.processes[0] if r.get("t", 0) > finished]
    assert last > finished and set(others) <= {"late", "iterator"}
    assert others.count("iterator") <= others.count("late")


def test_a_backward_that_takes_longer_and_longer_is_named(tmp_path: Path) -> None:
    found = trained(tmp_path, WAITS).evidence().get(SlowingDown)
    assert found is not None and found.late
    assert [phase.phase for phase in found.phases][:1] == ["backward"]


@pytest.mark.parametrize("step", [STARTS_AGAIN, HEALTHY], ids=["starts again", "healthy"])
def test_a_run_that_does_not_get_slower_is_left_in_peace(step: str, tmp_path: Path) -> None:
    run = trained(tmp_path, LOOP.replace("STEP", step))
    found = run.evidence().get(SlowingDown)
    assert found is not None and found.late
    assert slowing_down(run) is None


# --- nothing else changes ---------------------------------------------------------------------

SAME = """
import json, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
seen = set()
for step in range(2000):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.001)
    seen.add(torch.Tensor.backward.__code__.co_filename.startswith("<"))
print(step, loss.item(), model.weight.sum().item(), torch.rand(1).item())
json.dump(sorted(seen), open("seen.json", "w"))
"""


def test_the_same_is_computed_and_hooks_are_off_in_between(tmp_path: Path) -> None:
    run = trained(tmp_path, SAME)
    assert len(run.of("late")) >= 3
    assert json.loads((tmp_path / "seen.json").read_text()) == [False, True]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    plain = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True,
                           text=True, env=environ, check=True)  # fmt: skip
    assert run.out == plain.stdout


FORKS = (
    GOES_ON
    + """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = DataLoader(TensorDataset(torch.randn(1600, 8)), batch_size=8, num_workers=2)
while goes_on():
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
"""
)


def test_workers_that_start_after_the_windows_write_nothing(tmp_path: Path) -> None:
    run = trained(tmp_path, FORKS)
    assert len(run.of("late")) >= 3
    finished = run.of("finish")[0]["t"]
    workers = [records for records in run.processes if records[0]["kind"] == "role"]
    fetches = [[r["t"] for r in records if r["kind"] == "fetch"] for records in workers]
    first = [moments[0] for moments in fetches if moments]
    assert first and max(first) < finished + 1_000_000_000  # it was forked before
    # The batches of iterators that were made meanwhile are seen as such.
    assert all(0 in r["m"][::3] for r in run.of("late")[-3:])


def test_a_worker_of_many_hours_measures_hardly_more_fetches_than_one_of_minutes() -> None:
    def measured(hours: float) -> int:
        age, fetches = 0.0, 0
        while age < hours * 3600e9:
            age, fetches = age + pause_ns(age, 60e9), fetches + 1
        return fetches

    assert measured(1 / 60) == pytest.approx(300, abs=1)  # one in 200 ms of the windows
    assert measured(100) < 2 * measured(1 / 10)


COMPILED = (
    GOES_ON
    + """
import sys, time, torch
import torch._dynamo as dynamo
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
loss_of = torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

@torch.compile(backend="eager")
def loss(x):
    return loss_of(model(x), x[:, :1])

step = 0
while step % 64 or goes_on(6):
    step += 1
    optimizer.zero_grad()
    loss(torch.randn(16, 8)).backward()
    optimizer.step()
print(dict(dynamo.utils.counters["frames"]), dynamo.utils.counters["recompiles"])
"""
)


def test_late_windows_make_dynamo_compile_nothing_again(tmp_path: Path) -> None:
    run = trained(tmp_path, COMPILED)
    late = run.of("late")
    assert len(late) >= 3
    finished = [r for r in run.of("window") if r["state"] == "end"][-1]
    assert {tuple(r["compiles"][:2]) for r in late} == {tuple(finished["compiles"][:2])}


def test_what_others_replaced_meanwhile_is_left_alone() -> None:
    owner: Any = SimpleNamespace(goes=1, returns=2, stays=3, theirs=4)
    patches = Patches()
    for name, afterwards in (("goes", GOES), ("returns", RETURNS), ("stays", STAYS),
                             ("theirs", RETURNS), ("new", RETURNS)):  # fmt: skip
        patches.set(owner, name, f"wrapped {name}", afterwards)
    for _ in range(2):
        patches.rest()
        assert vars(owner) == {"goes": 1, "returns": 2, "stays": "wrapped stays", "theirs": 4}
        owner.theirs = "their own"
        patches.resume(lambda owner: True)
        assert (owner.goes, owner.returns, owner.new) == (1, "wrapped returns", "wrapped new")
        assert owner.theirs == "their own"
        owner.theirs = 4
    patches.undo()
    assert vars(owner) == {"goes": 1, "returns": 2, "stays": 3, "theirs": 4}
    patches.resume(lambda owner: True)
    assert owner.returns == 2
