"""Weights updated by hand from ``torch.autograd.grad``, which ends a step if nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.probe.wire import BACKWARD_BEGIN, OF_GRAD

from .harness import watch_code

BY_HAND = """
import torch
model = torch.nn.Linear(4, 1)
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.01)
x = torch.ones(8, 4)
for step in range(120):
    gradients = torch.autograd.grad(model(x).square().mean(), parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients):
            parameter -= 0.01 * gradient
    if step >= {others}:
        model(x).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("others", "sources"), [(120, ["backward"]), (60, ["backward", "backward", "optimizer"]),
                            (3, ["backward", "optimizer"])],
)  # fmt: skip
def test_a_step_ends_with_its_gradients_until_something_stronger_ends_one(
    others: int, sources: list[str], tmp_path: Path
) -> None:
    run = watch_code(tmp_path, BY_HAND.format(others=others), windows=["baseline"])
    assert run.returncode == 0 and run.of("failure") == []
    assert [record["source"] for record in run.of("boundary")] == sources
    after = run.of("boundary")[-1]["t"]
    assert sum(r["n"] for r in run.of("steps") if r["s"] >= after) > 50


def test_a_step_that_follows_one_by_gradients_took_no_longer_than_the_run(tmp_path: Path) -> None:
    """Its first mark holds the thread's time on a core, a duration: it is no beginning."""
    run = watch_code(tmp_path, BY_HAND.format(others=60), windows=["baseline"])
    began = run.of("process")[0]["t"]
    assert all(0 <= record["took"] <= record["t"] - began for record in run.of("boundary"))


def test_its_calls_are_told_from_backward(tmp_path: Path) -> None:
    run = watch_code(tmp_path, BY_HAND.format(others=3), windows=["baseline"])
    marks = [r["m"][i : i + 3] for r in run.of("steps") for i in range(0, len(r["m"]), 3)]
    begun = [argument for code, _, argument in marks if code == BACKWARD_BEGIN]
    assert begun[-4:] in ([OF_GRAD, 0] * 2, [0, OF_GRAD] * 2)


def test_a_fault_where_the_kind_of_step_changes_never_reaches_the_script(tmp_path: Path) -> None:
    broken = "import sys, torch\nsys.modules['tdiag_probe.boundary'].Boundary._took = None\n"
    run = watch_code(tmp_path, broken + BY_HAND.format(others=3), windows=["baseline"])
    assert run.returncode == 0, run.err
    assert {record["where"] for record in run.of("failure")} == {"Boundary._begin_again"}
