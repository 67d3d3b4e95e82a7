"""Every way to write a training loop, and the phases its time must be found in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.from_run import load_run
from tdiag.evidence.steps import Phases, Steps
from tdiag.probe.wire import OF_GRAD

from .making import (
    BACKWARD,
    CRITIC,
    FORWARD,
    GC,
    MODEL,
    MS,
    NEXT,
    OPTIMIZER,
    SAVE,
    TEACHER,
    TRAIN,
    VALID,
    Run,
    plain,
)


def phases_of(run: Run) -> Phases:
    found = load_run(run.write()).get(Phases)
    assert found is not None
    return found


def in_ms(run: Run) -> dict[str, float]:
    return {name: round(ns / MS, 3) for name, ns in phases_of(run).wall_ns.items()}


def test_plain_loop(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(30, plain)
    assert in_ms(run) == {
        "data_wait": 4, "prepare": 2, "forward": 6, "loss": 3, "backward": 10, "optimizer": 4,
        "after_step": 1,
    }  # fmt: skip
    found = phases_of(run)
    assert found.counts["backward"] == found.counts["data_wait"] == found.counts["forward"] == 1
    assert found.waits_ns == (4 * MS,) * 30
    assert found.update_ns == 3 * MS  # clipping is no part of it


def test_how_much_phases_vary_from_step_to_step_and_together(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        more = number % 2
        run.batch(4 + 2 * more)
        run.forward(6 + more)
        run.backward(10)
        run.update(3 - more)

    table = phases_of(Run(tmp_path).steps(30, step)).covariance_ns2
    half = 0.25 * 30 / 29 * MS**2  # the sample variance of 0, 1, 0, 1, …
    assert table["data_wait"]["data_wait"] == pytest.approx(4 * half)
    assert table["forward"]["data_wait"] == pytest.approx(2 * half)
    assert table["forward"]["optimizer"] == pytest.approx(-half)
    assert table["backward"]["data_wait"] == pytest.approx(0)
    assert phases_of(Run(tmp_path / "one").steps(1, plain)).covariance_ns2 == {}


def test_other_threads_of_python_are_counted_over_the_clean_window(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(100, plain)
    began = next(line for line in run.lines if line["kind"] == "window")
    began["threads"] = {7: 5 * MS}
    late = run.now + MS  # the window's end is recorded after the step's
    busy = {7: 5 * MS + (late - began["t"]) // 5, 8: (late - began["t"]) // 10}  # 8 is new
    run.add("window", t=late, threads=busy, name="baseline", state="end", **{"pass": 1})
    assert phases_of(run).beside_ns == pytest.approx(0.3 * 30 * MS)  # of a step of 30 ms
    assert phases_of(Run(tmp_path / "old").steps(100, plain)).beside_ns is None


def test_derivatives_in_a_loss_are_counted_apart(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        run.forward(6)
        run.backward(2, arg=OF_GRAD)
        run.gap(4)  # a step of an inner loop
        run.forward(6)
        run.backward(2, arg=OF_GRAD)
        run.backward(10)
        run.update(3)

    found = phases_of(Run(tmp_path).steps(30, step))
    assert (found.counts["backward"], found.grad_calls) == (3, 2)
    assert "prepare" not in found.wall_ns and found.wall_ns["forward"] == 16 * MS


def test_cpu_time_is_absent_where_it_was_not_measured(tmp_path: Path) -> None:
    cpu = phases_of(Run(tmp_path).steps(30, plain)).cpu_ns
    assert {name: ns / MS for name, ns in cpu.items()} == pytest.approx(
        {"data_wait": 4, "prepare": 2, "after_step": 1}
    )


def test_accumulation_is_one_step_of_many_backwards(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        for _ in range(4):
            run.gap(1)
            run.batch(2)
            run.forward(3)
            run.gap(1)
            run.backward(5)
        run.update(2)

    run = Run(tmp_path).steps(30, step)
    assert in_ms(run) == {
        "after_step": 4, "data_wait": 8, "forward": 12, "loss": 4, "backward": 20, "optimizer": 2,
    }  # fmt: skip
    assert phases_of(run).counts["backward"] == 4


def test_two_optimizers_of_a_gan(tmp_path: Path) -> None:
    """The discriminator leads; the generator's part lies in the step that follows."""

    def step(run: Run, number: int) -> None:
        run.forward(2, CRITIC)
        run.gap(1)
        run.backward(3)
        run.update(1, 1)  # the generator
        run.batch(5)
        run.forward(2, MODEL, grad=False)  # fakes without gradients are no evaluation
        run.forward(2, CRITIC)
        run.gap(1)
        run.backward(3)
        run.update(1, 0)

    assert in_ms(Run(tmp_path).steps(30, step)) == {
        "data_wait": 5, "forward": 6, "loss": 2, "backward": 6, "optimizer": 2,
    }  # fmt: skip


def test_an_update_by_hand_lies_between_backward_and_the_next_batch(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        run.gap(2)  # the update of the step before
        run.batch(3)
        run.forward(4)
        run.gap(1)
        run.backward(5)

    assert in_ms(Run(tmp_path, boundary="backward").steps(30, step)) == {
        "optimizer": 2, "data_wait": 3, "forward": 4, "loss": 1, "backward": 5,
    }  # fmt: skip


def test_functions_instead_of_modules_are_forward(tmp_path: Path) -> None:
    """d2l notebooks: no module is ever called, so forward and loss cannot be told apart."""

    def step(run: Run, number: int) -> None:
        run.gap(2)
        run.batch(3)
        run.gap(4)
        run.backward(5)

    assert in_ms(Run(tmp_path, boundary="backward").steps(30, step)) == {
        "optimizer": 2, "data_wait": 3, "forward": 4, "backward": 5,
    }  # fmt: skip


def test_what_no_mark_tells_apart_is_unattributed(tmp_path: Path) -> None:
    """No loader, no module, no optimizer: update, batch, forward and loss are one stretch."""

    def step(run: Run, number: int) -> None:
        run.gap(9)
        run.backward(5)

    assert in_ms(Run(tmp_path, boundary="backward").steps(30, step)) == {
        "unattributed": 9, "backward": 5,
    }  # fmt: skip


def test_tensors_indexed_by_hand_are_prepared(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        run.gap(7)
        run.forward(4)
        run.gap(1)
        run.backward(5)
        run.update(2)

    assert in_ms(Run(tmp_path).steps(30, step)) == {
        "prepare": 7, "forward": 4, "loss": 1, "backward": 5, "optimizer": 2,
    }  # fmt: skip


def test_closure_of_lbfgs_is_looked_into(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        run.batch(3)
        run.gap(1)
        with run.inside(OPTIMIZER):
            run.gap(0.5)  # zero_grad
            for search in (False, True):
                run.gap(2 if search else 0)  # the line search between two closures
                run.forward(4)
                run.gap(1)
                run.backward(5)
            run.gap(3)

    assert in_ms(Run(tmp_path).steps(30, step)) == {
        "data_wait": 3, "prepare": 1.5, "forward": 8, "loss": 2, "backward": 10, "optimizer": 5,
    }  # fmt: skip


def test_a_step_that_the_scaler_skipped_ends_without_an_update(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        if number % 2:
            plain(run)
        else:
            run.batch(4)
            run.forward(6)
            run.backward(10)
            run.gap(2)

    found = in_ms(Run(tmp_path).steps(30, step))
    assert found["backward"] == 10
    assert found["data_wait"] == 4
    assert sum(found.values()) == 26


def test_a_loss_class_of_the_users_own_is_loss(tmp_path: Path) -> None:
    """It has no parameters, or it returns a single number after the model was called."""

    def step(run: Run, number: int) -> None:
        run.batch(1)
        run.forward(4)
        run.forward(6, TEACHER, scalar=True)  # a perceptual loss, with parameters
        run.backward(5)
        run.update(2)

    assert in_ms(Run(tmp_path).steps(30, step))["loss"] == 6


def test_a_model_that_returns_its_loss_is_forward(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        run.batch(1)
        run.forward(4, scalar=True)
        run.backward(5)
        run.update(2)

    assert in_ms(Run(tmp_path).steps(30, step))["forward"] == 4


def test_checkpoint_and_collection_count_for_themselves(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        run.gap(1)
        if number % 10 == 0:
            run.pair(SAVE, 50)
        run.gap(1)
        with run.inside(NEXT, ret=-1):
            run.gap(2)
            run.pair(GC, 1)
            run.gap(1)
        run.forward(4)
        run.pair(GC, 2)  # in nobody's wait
        run.backward(5)
        run.update(2)

    run = Run(tmp_path).steps(30, step)
    found = in_ms(run)
    assert found["checkpoint"] == 5
    assert found["gc"] == 3
    assert phases_of(run).gc_in_wait_ns == 1 * MS
    assert found["data_wait"] == 3
    assert found["after_step"] == 2
    assert phases_of(run).checkpoint_ns_each == 50 * MS


def test_a_model_called_inside_a_dataset_is_data_wait(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        with run.inside(NEXT, ret=-1):
            run.forward(4, TEACHER, train=False, grad=False)
        run.forward(4)
        run.backward(5)
        run.update(2)

    assert in_ms(Run(tmp_path).steps(30, step))["data_wait"] == 4


def test_starting_and_ending_the_workers_is_told_from_waiting(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        if number % 10 == 0:
            if number:
                run.batch(14)  # which there is none of any more
            run.iterate(20)
            run.batch(34)
        else:
            run.batch(4)
        run.forward(4)
        run.backward(5)
        run.update(2)

    found = phases_of(Run(tmp_path).steps(30, step))
    assert found.iterator_start_ns == pytest.approx((3 * (20 + 30) + 2 * 10) / 30 * MS)
    assert found.wall_ns["data_wait"] == pytest.approx((3 * (20 + 34) + 27 * 4 + 2 * 14) / 30 * MS)
    assert found.waits_ns == (4 * MS,) * 27, "the starts and ends are no waits for a slow batch"
    assert found.batches == {TRAIN: 1.0}


def test_requests_without_a_batch_give_none(tmp_path: Path) -> None:
    """Passes of two steps: four requests, two batches. The second of two zipped loaders is not
    asked any more once the first has ended."""

    def step(run: Run, number: int) -> None:
        if number % 2 == 0:
            if number:
                run.batch(1)
            for loader in (TRAIN, VALID):
                run.iterate(1, loader)
        run.batch(4)
        run.batch(2, VALID)
        run.forward(4)
        run.backward(5)
        run.update(2)

    found = phases_of(Run(tmp_path).steps(30, step))
    assert found.batches == {TRAIN: 1.0, VALID: 1.0}
    assert found.counts["data_wait"] > 3


@pytest.mark.parametrize("code", [FORWARD, BACKWARD, OPTIMIZER, NEXT])
def test_stray_marks_cost_no_time(tmp_path: Path, code: int) -> None:
    """An end without a beginning (hooks came late), a beginning without an end (an exception)."""

    def step(run: Run, number: int) -> None:
        run.mark(code + 1, 0)
        plain(run)
        if number % 3 == 0:
            run.mark(code, 0)
            run.gap(2)

    run = Run(tmp_path).steps(30, step)
    steps = load_run(run.write()).get(Steps)
    assert steps is not None
    assert sum(in_ms(run).values()) == pytest.approx(steps.mean_ns / MS, abs=1e-3)


def test_what_one_step_saves_is_one_checkpoint(tmp_path: Path) -> None:
    """Weights, then the optimizer's state: how often to save is a matter of both."""

    def step(run: Run, number: int) -> None:
        if number % 10 == 0:
            run.pair(SAVE, 50)
            run.gap(1)
            run.pair(SAVE, 30)
        run.forward(4)
        run.backward(5)
        run.update(2)

    found = phases_of(Run(tmp_path).steps(30, step))
    assert found.checkpoint_ns_each == 80 * MS
    assert found.counts["checkpoint"] == 0.1


@pytest.mark.parametrize(("queued", "blocked"), [(0.1, 0.6), (0.0, None)])
def test_what_is_neither_on_a_core_nor_ready_for_one_is_blocked(
    tmp_path: Path, queued: float, blocked: float | None
) -> None:
    """30 % on a core. A kernel that counts no time in the run queue does not tell it from blocked
    time."""
    run = Run(tmp_path).steps(100, plain)
    began = next(line for line in run.lines if line["kind"] == "window")
    began |= {"cpu": 5 * MS, "runq": 7 * MS}
    took = run.now - began["t"]
    run.add(
        "window", t=run.now, name="baseline", state="end", cpu=5 * MS + round(0.3 * took),
        runq=7 * MS + round(queued * took), **{"pass": 1},
    )  # fmt: skip
    expected = None if blocked is None else pytest.approx(blocked * 30 * MS)
    assert phases_of(run).blocked_ns == expected
