"""Python that a function of the loss runs before it calls the model."""

from __future__ import annotations

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, Ops
from tdiag.rules.examples import MS, at, environment, op_line, ops, phases, stack, stacks
from tdiag.rules.loop_lines import BEFORE, beside_the_step, of_the_loss, within_the_step

from .test_loop_lines import tree

LINES = stacks((stack(66, 0.5, "returns (me/train.py)", function="returns"),))


def calls(name: str) -> Ops:
    """``main`` calls the function at 97 and updates at 101; the function calls the model at 73 and
    computes the loss at 76."""
    return ops(
        op_line(73, "forward", 6, elapsed_ns=5e6, at=at(73, name)),
        op_line(76, "loss", 9, elapsed_ns=1e6, at=at(76, name)),
        op_line(101, "optimizer", 9, elapsed_ns=1e6, at=at(101, "main")),
    )


def called(name: str, line: int) -> CallTrees:
    """The function calls ``returns`` at this line, whose line 66 takes half of the step."""
    return tree(
        ("main", 97, -1, 0.9),
        (name, line, 0, 0.5),
        ("returns", 66, 1, 0.5),
        (name, 73, 0, 0.3),
        (name, 76, 0, 0.1),
        ("main", 101, -1, 0.1),
    )


@pytest.mark.parametrize(
    ("name", "line", "runs_before"),
    [
        ("policy_loss", 71, True),
        ("policy_loss", 75, False),  # between the model and the loss
        ("train_on", 71, True),  # before the forward, whatever its name is
        ("forward", 71, False),  # what a module does first is its forward
    ],
)
def test_lines_above_the_call_of_the_model(name: str, line: int, runs_before: bool) -> None:
    trees = called(name, line)
    before = [x.at.line for x in beside_the_step(BEFORE, LINES, calls(name), trees)]
    assert before == [66] * runs_before
    found = within_the_step(LINES, calls(name), trees)
    assert list(found.values()) == ["prepare"] * runs_before


@pytest.mark.parametrize(
    ("name", "cls"), [("policy_loss", "python_loss"), ("compute_loss", "python_loss"),
                      ("train_on", "cpu")],
)  # fmt: skip
def test_python_of_the_loss_is_no_preprocessing(name: str, cls: str) -> None:
    trees = called(name, 71)
    assert bool(of_the_loss(LINES, calls(name), trees)) is (cls == "python_loss")
    wall = {"prepare": 50.0, "forward": 20.0, "loss": 10.0, "backward": 15.0, "optimizer": 5.0}
    ns = 100 * MS
    found = diagnose(
        Evidence().add(
            Steps(durations_ns=(ns,) * 50, mean_ns=ns, median_ns=ns, p90_ns=ns, count=50,
                  boundary="optimizer", total_steps_seen=90),
            phases(**wall), LINES, calls(name), trees, environment(),
            Dispatch(op_ns=1500, grad_op_ns=7000),
        )
    )  # fmt: skip
    assert found.verdict.cls == cls
    first = found.findings[0]
    assert first.location is not None and first.location.line == 66
    assert first.code == ("TD709" if cls == "python_loss" else "TD219")


@pytest.mark.parametrize(
    ("name", "is_loss"), [("nll", True), ("neg_log_likelihood", True), ("gather", False)]
)
def test_a_loss_that_the_forward_computes_is_the_loss_by_its_name(name: str, is_loss: bool) -> None:
    """``main`` calls the model at 97, whose forward calls the function at 44."""
    made = ops(
        op_line(66, "forward", 60, elapsed_ns=5e6, at=at(66, "scores")),
        op_line(101, "optimizer", 9, elapsed_ns=1e6, at=at(101, "main")),
    )
    frames = tree(
        ("main", 97, -1, 0.9),
        ("forward", 44, 0, 0.8),
        (name, 50, 1, 0.6),
        ("scores", 66, 2, 0.5),
        ("main", 101, -1, 0.1),
    )
    lines = stacks((stack(66, 0.5, function="scores", phase="forward"),))
    assert bool(of_the_loss(lines, made, frames)) is is_loss


@pytest.mark.parametrize("phase", ["forward", "loss"])
def test_lines_of_a_model_that_the_loss_calls_are_not_the_losss(phase: str) -> None:
    """Those of a criterion are."""
    made = ops(*calls("compute_loss").lines, op_line(44, phase, 60, at=at(44, "forward")))
    frames = tree(
        ("main", 97, -1, 0.9),
        ("compute_loss", 73, 0, 0.8),
        ("forward", 44, 1, 0.5),
        ("main", 101, -1, 0.1),
    )
    lines = stacks((stack(44, 0.5, function="forward", phase=phase),))
    assert bool(of_the_loss(lines, made, frames)) is (phase == "loss")


def test_nothing_is_known_without_samples_or_calls() -> None:
    nothing: Stacks | None = None
    assert of_the_loss(nothing, calls("loss"), None) == set()
    assert of_the_loss(LINES, None, None) == set()
