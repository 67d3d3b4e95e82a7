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


# --- late windows -----------------------------------------------------------------------------

Course = Callable[[int], float]
LATE = [round(2_000 * 1.05**n) for n in range(60)]  # the steps at which they begin, to 35,600


def late(
    folder: Path, after_ms: Course, slower: Course = lambda number: 1.0,
    backward_ms: Course = lambda number: 3.0, at: list[int] = LATE, **fields: Callable[[int], int],
) -> SlowingDown:  # fmt: skip
    """400 clean steps of 11 ms, then late windows; one step in three is disturbed, and of one
    window in ten all. ``slower``: than at the beginning, all that is computed."""
    noise, disturbed = random.Random(3), [False]

    def step(run: Run, number: int) -> None:
        by = slower(number)
        run.gap(10 if disturbed[0] else 0)
        run.gap(by * after_ms(number) + (noise.random() * 5 if noise.random() < 0.3 else 0))
        run.batch(4 + noise.random())  # from a worker
        run.forward(by * (3 + noise.random()))
        run.gap(by * 0.5)
        run.backward(by * (backward_ms(number) + noise.random()))
        run.update(by)

    run = Run(folder).steps(400, step)
    for number in at:
        disturbed[0] = noise.random() < 0.1
        run.late(number, step, **{name: course(number) for name, course in fields.items()})
    found = load_run(run.write()).get(SlowingDown)
    assert found is not None
    return found


def test_hours_later_a_growing_phase_has_its_slope_with_an_interval(tmp_path: Path) -> None:
    found = late(tmp_path, lambda number: 0.1 + 0.0002 * number)
    (only,) = found.phases
    assert found.late and only.phase == "after_step"
    assert only.least_ns <= 200 <= only.most_ns
    assert only.least_ns > 0.9 * 200 and only.most_ns < 1.1 * 200
    assert (found.first_step, found.last_step, found.clean_step) == (2000, LATE[-1] + 7, 399)
    # 0.04 of 0.14 ms in the clean steps, and what disturbed them.
    assert only.grown_frac is not None and only.grown_frac < 0.3


def test_a_growing_phase_that_was_seen_growing_says_so(tmp_path: Path) -> None:
    (only,) = late(tmp_path, lambda number: 0.05 * number).phases
    assert only.grown_frac is not None and only.grown_frac > 0.7


def test_neighbours_that_disturb_the_computing_beside_it_do_not_hide_growth(tmp_path: Path) -> None:
    """They make the backward of some windows of a short run longer."""
    at = LATE[26:46]
    noise = random.Random(0)
    longer = {number: 3 + 4 * noise.random() for number in at}

    def backward_ms(number: int) -> float:
        return longer[max(begin for begin in at if begin <= number)] if number >= at[0] else 3.0

    found = late(tmp_path, lambda number: 0.1 + 0.0001 * number, backward_ms=backward_ms, at=at)
    assert [phase.phase for phase in found.phases] == ["after_step"]


@pytest.mark.parametrize("length", [700, 4_000, 9_000, 14_000])
def test_hours_later_what_starts_again_with_each_epoch_is_no_growth(
    length: int, tmp_path: Path
) -> None:
    assert late(tmp_path, lambda number: 0.001 * (number % length)).phases == ()


@pytest.mark.parametrize("jump", [5_000, 15_000, 30_000])
def test_hours_later_a_jump_is_no_growth(jump: int, tmp_path: Path) -> None:
    assert late(tmp_path, lambda number: 1.0 if number < jump else 4.0).phases == ()


@pytest.mark.parametrize("until", [0, 12_000])
def test_beside_a_phase_that_grew_more_but_not_for_long_no_other_is_named(
    until: int, tmp_path: Path
) -> None:
    """Whatever made that phase longer may have made this one longer, too."""
    found = late(
        tmp_path, lambda number: 1.0 + 0.002 * min(number, until),
        backward_ms=lambda number: 3 + 0.0001 * number,
    )  # fmt: skip
    assert [phase.phase for phase in found.phases] == ([] if until else ["backward"])


def test_hours_later_noise_is_no_growth(tmp_path: Path) -> None:
    noise = random.Random(4)
    found = late(tmp_path, lambda number: 1 + noise.random())
    assert found.phases == () and found.memory_bytes == 0


def test_a_machine_that_gets_hotter_makes_no_phase_grow(tmp_path: Path) -> None:
    """What a worker hands over takes as long as ever; all that is computed takes longer."""
    found = late(tmp_path, lambda number: 1.0, slower=lambda number: 1 + number / 30_000)
    assert found.phases == ()


def test_a_graph_that_is_kept_grows_in_backward_and_in_memory(tmp_path: Path) -> None:
    found = late(
        tmp_path, lambda number: 1.0, backward_ms=lambda number: 3 + 0.001 * number,
        resident=lambda number: 300_000_000 + 4_000 * number,
    )  # fmt: skip
    assert [phase.phase for phase in found.phases] == ["backward"]
    assert found.memory_bytes == pytest.approx(4_000)


def test_a_few_late_windows_leave_the_clean_steps_to_tell(tmp_path: Path) -> None:
    found = late(tmp_path, lambda number: 0.05 * number, at=LATE[:7])
    assert not found.late and found.phases[0].phase == "after_step"
    assert found.last_step < 400
