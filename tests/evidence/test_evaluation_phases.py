"""Evaluation: what it is, what it is not, and what belongs to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.from_run import load_run

from .making import (
    CRITERION,
    MS,
    TEACHER,
    TRAIN,
    VALID,
    Run,
    loader,
    plain,
)
from .test_phases import in_ms, phases_of


def test_evaluation_between_epochs_with_its_waits(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        if number % 10 == 9:
            run.gap(1)  # model.eval()
            run.iterate(5, VALID)
            for _ in range(3):
                run.batch(2, VALID)
                run.forward(3, train=False, grad=False)
                run.forward(1, CRITERION, grad=False, scalar=True)
                run.gap(1)
            run.batch(2, VALID)  # the end of the loader
        plain(run)

    run = Run(tmp_path)
    loader(run, TRAIN)
    loader(run, VALID)
    found = in_ms(run.steps(30, step))
    assert found["evaluation"] == pytest.approx((1 + 5 + 3 * 7 + 2) / 10)
    assert found["data_wait"] == 4
    assert found["after_step"] == 1
    assert phases_of(run).eval_batches_per_step == 0.3
    assert phases_of(run).eval_grad_frac == 0
    assert phases_of(run).eval_evident
    loaders = load_run(tmp_path).get(Loaders)
    assert loaders is not None
    assert [x.role for x in loaders.loaders] == ["train", "eval"]


def test_a_criterion_that_judges_an_evaluation_is_no_batch_of_it(tmp_path: Path) -> None:
    """Without a DataLoader, calls of the model are counted (pytorch/examples' gat)."""

    def step(run: Run, number: int) -> None:
        plain(run)
        run.forward(3, train=False, grad=False)
        run.forward(1, CRITERION, grad=False, scalar=True)

    run = Run(tmp_path)
    assert phases_of(run.steps(30, step)).eval_batches_per_step == 1.0


@pytest.mark.parametrize("loads", [False, True])
def test_setting_up_another_trial_is_no_evaluation(loads: bool, tmp_path: Path) -> None:
    """Each trial of a search reads its data again and trains a new model."""

    def step(run: Run, number: int) -> None:
        trial = number // 10
        if number % 10 == 0 and number:
            run.forward(3, 10 + trial - 1, train=False, grad=False)
            run.gap(50)
        if loads:
            run.batch(4)
        run.forward(4, 10 + trial)
        run.backward(5)
        run.update(2)

    run = Run(tmp_path)
    loader(run)
    found = in_ms(run.steps(30, step))
    assert found["evaluation"] == pytest.approx(3 * 2 / 30, rel=0.1)
    assert found["after_step"] == pytest.approx(50 * 2 / 30, rel=0.1)


def test_evaluation_that_records_gradients_is_measured_as_such(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        if number % 10 == 9:
            for _ in range(3):
                run.batch(2, VALID)
                run.forward(3, train=False, grad=True)
        plain(run)

    found = phases_of(Run(tmp_path).steps(30, step))
    assert found.eval_grad_frac == 1
    assert found.wall_ns["evaluation"] == pytest.approx(1.6 * MS)  # and what follows its end


def test_evaluation_on_a_tensor_without_any_loader(tmp_path: Path) -> None:
    """nanoGPT's estimate_loss: every k-th step, in eval mode, no loader anywhere."""

    def step(run: Run, number: int) -> None:
        if number % 5 == 4:
            for _ in range(2):
                run.gap(1)
                run.forward(4, train=False, grad=False)
        run.gap(1)
        run.forward(4)
        run.backward(5)
        run.update(2)

    run = Run(tmp_path).steps(30, step)
    found = in_ms(run)
    assert not phases_of(run).eval_evident  # an agent's rollouts look the same
    # The first batch of the evaluation is found with it, what follows its last forward too.
    assert found["evaluation"] == pytest.approx((2 * 5 + 1) / 5)
    assert found["forward"] == 4


@pytest.mark.parametrize("scalar", [True, False])
def test_a_part_of_the_model_without_parameters_judges_nothing(
    scalar: bool, tmp_path: Path
) -> None:
    """An agent's policy that calls its parts one by one (Stable-Baselines3): its features are
    flattened by a module without parameters, after the previous step's layers."""

    def step(run: Run, number: int) -> None:
        if number % 10 == 9:
            for _ in range(4):
                run.forward(1, flatten, train=False, grad=False, scalar=scalar)
                run.forward(2, train=False, grad=False)
        run.gap(1)
        run.forward(4)
        run.backward(5)
        run.update(2)

    run, flatten = Run(tmp_path), 9
    run.add("module", id=flatten, name="Flatten", at=None, parameters=0, parameter_bytes=0)
    assert phases_of(run.steps(30, step)).eval_evident is scalar


def test_a_frozen_teacher_in_the_step_is_forward(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        run.batch(3)
        run.forward(7, TEACHER, train=False, grad=False)
        run.forward(4)
        run.gap(1)
        run.backward(5)
        run.update(2)

    found = in_ms(Run(tmp_path).steps(30, step))
    assert found["forward"] == 11
    assert "evaluation" not in found


def test_a_teacher_that_the_script_trained_first_is_forward(tmp_path: Path) -> None:
    """Distillation in one script, without a DataLoader. Most recorded steps train the teacher."""

    def step(run: Run, number: int) -> None:
        run.gap(3)
        if number < 18:
            run.forward(4, TEACHER)
        else:
            run.forward(7, TEACHER, train=False, grad=False)
            run.forward(4)
        run.backward(5)
        run.update(2)

    found = phases_of(Run(tmp_path).steps(30, step))
    assert "evaluation" not in found.wall_ns
    assert found.wall_ns["forward"] == pytest.approx((18 * 4 + 12 * 11) / 30 * MS)


def test_a_teacher_on_one_of_two_zipped_loaders_is_forward(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        run.batch(3, TRAIN)
        run.forward(7, TEACHER, train=False, grad=False)
        run.batch(2, VALID)
        run.forward(4)
        run.backward(5)
        run.update(2)

    assert "evaluation" not in in_ms(Run(tmp_path).steps(30, step))


def test_fine_tuning_in_eval_mode_is_training(tmp_path: Path) -> None:
    """Frozen batch norms: the model is in eval mode all the time."""

    def step(run: Run, number: int) -> None:
        run.batch(3)
        run.forward(4, train=False)
        run.gap(1)
        run.backward(5)
        run.update(2)

    assert "evaluation" not in in_ms(Run(tmp_path).steps(30, step))


def test_prediction_without_training_is_forward(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        run.forward(6, train=False, grad=False)
        run.gap(1)
        run.batch(3)

    assert in_ms(Run(tmp_path, boundary="batch").steps(30, step)) == {
        "forward": 6, "after_step": 1, "data_wait": 3,
    }  # fmt: skip
