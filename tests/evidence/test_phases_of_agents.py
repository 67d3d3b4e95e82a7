"""An agent calls its model before the step, to act."""

from __future__ import annotations

from pathlib import Path

import pytest

from .making import TEACHER, Run
from .test_phases import in_ms, phases_of


@pytest.mark.parametrize(("loader", "found"), [(False, "prepare"), (True, "forward")])
def test_an_agent_that_acts_draws_its_batch_before_the_forward(
    tmp_path: Path, loader: bool, found: str
) -> None:
    """A teacher is called without gradients, too; then a loader has the batch."""

    def step(run: Run, number: int) -> None:
        if loader:
            run.batch(1)
        run.forward(2, grad=False)
        run.gap(5)  # its environment, and a batch from its memory
        run.forward(2, grad=False)
        run.gap(1)
        run.forward(6)
        run.gap(3)
        run.forward(2, grad=False)
        run.backward(10)
        run.update(3)

    run = Run(tmp_path).steps(30, step)
    times = in_ms(run)
    assert phases_of(run).acts is not loader
    assert times.get("prepare", 0) == (6 if found == "prepare" else 0)
    assert times["forward"] == 21 - times.get("prepare", 0)


@pytest.mark.parametrize(("between", "found"), [(9, True), (1, False)])
def test_what_lies_between_two_actions_is_its_environment(
    tmp_path: Path, between: int, found: bool
) -> None:
    """After the last action it may also draw its batch from memory."""

    def step(run: Run, number: int) -> None:
        for _ in range(3):
            run.forward(2, grad=False)
            run.gap(between)
        run.gap(8)
        run.forward(6)
        run.backward(10)
        run.update(3)

    run = Run(tmp_path).steps(30, step)
    assert phases_of(run).rolls_out is found
    assert phases_of(run).learners_acts == 3


def test_a_teacher_is_no_learner_that_acts(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        for _ in range(3):
            run.forward(2, module=TEACHER, grad=False)
        run.forward(6)
        run.backward(10)
        run.update(3)

    assert phases_of(Run(tmp_path).steps(30, step)).learners_acts == 0
