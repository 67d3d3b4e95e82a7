"""Steps that take longer and longer are told from steps that are disturbed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tdiag.evidence.from_run import load_run
from tdiag.evidence.steps import SlowingDown

from .making import Run


def slowing(folder: Path, after_ms: Callable[[int], float], steps: int = 400) -> SlowingDown:
    """A step of 11 ms, and after it what ``after_ms`` says; one step in three is disturbed."""
    noise = random.Random(1)

    def step(run: Run, number: int) -> None:
        run.gap(after_ms(number) + (noise.random() * 5 if noise.random() < 0.3 else 0))
        run.batch(4 + noise.random())
        run.forward(3 + noise.random())
        run.gap(0.5)
        run.backward(3 + noise.random())
        run.update(1)

    found = load_run(Run(folder).steps(steps, step).write()).get(SlowingDown)
    assert found is not None
    return found


def test_a_growing_phase_has_its_slope_with_an_interval(tmp_path: Path) -> None:
    found = slowing(tmp_path, lambda number: 0.1 + 0.02 * number)
    assert [phase.phase for phase in found.phases] == ["after_step"]
    only = found.phases[0]
    assert only.least_ns <= 20_000 <= only.most_ns
    assert only.most_ns < 1.2 * only.least_ns
    assert found.first_step == 0


@pytest.mark.parametrize(
    "after_ms",
    [
        lambda number: 1.0,
        lambda number: 1.0 if number < 200 else 3.0,  # another program began
        lambda number: 1.0 if number < 120 else 3.0,
        lambda number: 0.01 * (number % 100),  # again from the start in every epoch
        lambda number: 5.0 - 0.01 * number,
    ],
    ids=["even", "jump", "earlier jump", "sawtooth", "faster"],
)
def test_other_courses_are_no_growth(after_ms: Callable[[int], float], tmp_path: Path) -> None:
    assert slowing(tmp_path, after_ms).phases == ()


def test_a_machine_that_gets_slower_makes_no_phase_grow(tmp_path: Path) -> None:
    """Other programs, or heat: every phase takes longer alike."""
    noise = random.Random(2)

    def step(run: Run, number: int) -> None:
        slower = (1 + number / 400) * (1 + 0.02 * noise.random())
        run.batch(4 * slower)
        run.forward(3 * slower)
        run.gap(0.5 * slower)
        run.backward(3 * slower)
        run.update(slower)

    found = load_run(Run(tmp_path).steps(400, step).write()).get(SlowingDown)
    assert found is not None and found.phases == ()


def test_too_few_steps_tell_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(20, lambda run, number: run.batch(1 + number))
    assert load_run(run.write()).get(SlowingDown) is None
