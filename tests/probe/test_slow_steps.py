"""Steps longer than a window: each window holds one of them, or a part where they have parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import Watched, watch_code

WINDOWS = ["baseline", "sample", "ops"]

# Seconds are slept, not worked: nothing here depends on how fast the machine is.
ONE_PASS = """
import time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    time.sleep(0.1)
    loss = model(torch.randn(4, 8)).mean()
    time.sleep(4.2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CLOSURE = """
import time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, tolerance_grad=0, tolerance_change=0)
x = torch.randn(4, 8)
def closure():
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    time.sleep(2.1)
    loss.backward()
    return loss
while True:
    optimizer.step(closure)
"""
QUICK_CLOSURE = CLOSURE.replace("time.sleep(2.1)", "time.sleep(0.001)")


def boundary(run: Watched) -> str:
    return str(run.of("boundary")[-1]["source"])


@pytest.mark.training
def test_each_window_holds_one_slow_step_and_the_budget_is_kept(tmp_path: Path) -> None:
    run = watch_code(tmp_path, ONE_PASS, windows=WINDOWS, time_budget_s=12.0, profiling=True)
    assert run.returncode == 0, run.err
    assert run.of("boundary")[-1]["took"] > 4.0e9
    # From the first boundary on: no step is spent on warming up or settling, and the third ends
    # nearest to 12 s.
    assert run.windows() == ["baseline1", "sample1", "ops1"]
    assert [step["w"] for step in run.steps()] == ["baseline", "sample", "ops"]
    assert [r["why"] for r in run.of("finish")] == ["time"]


@pytest.mark.training
def test_a_slow_step_of_many_closures_is_divided(tmp_path: Path) -> None:
    run = watch_code(tmp_path, CLOSURE, windows=["baseline"], steps=6, profiling=True)
    assert (run.returncode, boundary(run)) == (0, "closure"), run.err
    clean = [step for step in run.steps() if step["w"] == "baseline"]
    assert clean and all(2.0e9 < step["t"] - step["s"] < 3.2e9 for step in run.steps())
    evidence = run.evidence()
    assert any("one call of the closure" in note.text for note in evidence.notes)


def test_quick_closures_stay_one_step(tmp_path: Path) -> None:
    run = watch_code(tmp_path, QUICK_CLOSURE, windows=["baseline"], steps=6, profiling=True)
    assert (run.returncode, boundary(run)) == (0, "optimizer"), run.err
