"""Where the forward ends and the loss begins, if a function goes on after the modules."""

from __future__ import annotations

import pytest

from tdiag.diagnose.predictions import with_predictions
from tdiag.evidence.steps import Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.rules.examples import at, call_tree, op_line, ops, phases, stack, stacks


def training(
    predicts: str = "predict", loss_in: str = "main", loss: str = "mse_loss", caller: str = "main"
) -> Evidence:
    """``main`` calls ``predict``, which calls a module at line 40, then ``siren`` at line 42 in a
    loop; the loss is computed at line 12."""
    return Evidence().add(
        phases(forward=10, loss=50, backward=50),
        ops(
            op_line(40, "forward", 4, at=at(40, predicts), names={"linear": 4}, elapsed_ns=8e6),
            op_line(30, "loss", 90, at=at(30, "siren"), names={"sin": 90}, elapsed_ns=30e6),
            op_line(42, "loss", 90, at=at(42, predicts), names={"view": 90}, elapsed_ns=9e6),
            op_line(12, "loss", 1, at=at(12, loss_in), names={loss: 1}, elapsed_ns=1e6),
        ),
        call_tree((caller, 12, 1.0), (predicts, 42, 0.5), ("siren", 30, 0.3)),
        stacks((stack(30, 0.3, phase="loss"), stack(12, 0.01, phase="loss"))),
    )


def moved(evidence: Evidence) -> dict[int, str]:
    evidence.add(*with_predictions(evidence))
    known = evidence.get(Ops)
    assert known is not None
    return {line.at.line: line.phase for line in known.lines}


def test_a_function_that_its_caller_takes_the_loss_of_is_the_forward() -> None:
    evidence = training()
    assert moved(evidence) == {40: "forward", 30: "forward", 42: "forward", 12: "loss"}
    divided = evidence.get(Phases)
    assert divided is not None
    assert divided.wall_ns["forward"] == pytest.approx(10e6 + 50e6 * 39 / 40)
    assert divided.wall_ns["loss"] == pytest.approx(50e6 / 40)
    kept = with_predictions(evidence)
    assert kept == []  # a second time there is nothing left


@pytest.mark.parametrize(
    "changes",
    [
        {"predicts": "compute_loss"},  # its own words
        {"loss_in": "predict"},  # it computes the loss itself
        {"loss": "mean"},  # a loss written by hand may begin anywhere
        {"loss_in": "reconstruction", "caller": "main"},  # the caller may compute none
    ],
)
def test_what_may_be_the_loss_stays_the_loss(changes: dict[str, str]) -> None:
    assert set(moved(training(**changes)).values()) == {"forward", "loss"}
    assert with_predictions(training(**changes)) == []
