"""Anomaly detection: what it costs for each call with gradients, parameter and gradient."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch
from tdiag.evidence.training import Modules, Optimizers
from tdiag.model.diagnosis import Abstained
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, budget, flags, module, op_line, ops, optimizers, phases

from .test_td4xx_to_td7xx_loss_and_overhead import DISPATCH, finding, result

LARGE = module("Net", parameters=100_000, parameter_bytes=400_000)


def test_anomaly_detection_is_not_taken_for_the_fixed_cost_of_a_call() -> None:
    evidence = Evidence().add(
        budget(forward=6, backward=14),
        phases(forward=6, backward=14),
        ops(op_line(20, "forward", 80, grad_calls=80.0)),
        flags(anomaly_mode=True),
        Dispatch(op_ns=1500, grad_op_ns=150_000),
    )
    assert result("TD701", evidence) is None
    found = finding("TD704", evidence)
    saved = 80 * (150_000 - 4.5 * 1500)  # as measured in the process
    assert found.at_best_ns == pytest.approx(saved, rel=0.01)


def test_anomaly_detection_costs_a_stack_for_each_parameter() -> None:
    """Of 400 parameters that one call stacks: up to 62 plain calls each, unless the last loss is
    still alive, and 2 to 6 for its gradient's check for NaN."""
    step = Evidence().add(budget(forward=40, backward=15, optimizer=5), flags(anomaly_mode=True))
    step.add(ops(op_line(34, "forward", 2, grad_calls=2.0)), DISPATCH)
    (one,) = optimizers("SGD").optimizers
    found = finding("TD704", step.add(Optimizers(optimizers=(replace(one, tensors=400),))))
    assert found.why_gain.startswith("each call that records gradients costs 27 to 65 plain calls")
    assert found.speedup is not None
    low, high = 1 - 1 / found.speedup.low, found.at_best_ns / (60 * MS)
    own = 2 * DISPATCH.op_ns
    assert high == pytest.approx((400 * 68 * DISPATCH.op_ns + own * 65) / (60 * MS), rel=0.01)
    assert low == pytest.approx((400 * 2 * DISPATCH.op_ns + own * 27) / (60 * MS), rel=0.05)


def test_anomaly_detection_without_counts_claims_nothing() -> None:
    evidence = Evidence().add(budget(forward=6, backward=9), flags(anomaly_mode=True))
    assert finding("TD704", evidence).advisory
    assert isinstance(result("TD704", Evidence().add(budget(forward=6))), Abstained)


def test_it_costs_at_most_the_calls_that_record_gradients_and_backward() -> None:
    """Of 20 ms of forward, half in such calls, and 5 of backward."""
    lines = (
        op_line(34, "forward", 2, grad_calls=2.0, elapsed_ns=9 * MS),
        op_line(35, "forward", 2, elapsed_ns=9 * MS),
    )
    step = Evidence().add(budget(forward=20, backward=5, optimizer=75), flags(anomaly_mode=True))
    step.add(ops(*lines), DISPATCH, phases(forward=20, backward=5, optimizer=75))
    (one,) = optimizers("SGD").optimizers
    found = finding("TD704", step.add(Optimizers(optimizers=(replace(one, tensors=4000),))))
    assert found.at_best_ns == pytest.approx(15 * MS)


def test_each_parameters_gradient_is_looked_at_for_nan() -> None:
    """Two to six plain calls of 1.5 µs for each of 60 tensors, beside up to 62 of its stack; and 1
    to 4.5 ns for each of 100,000 numbers."""
    lows, highs = [], []
    for extra in ((), (optimizers("Adam"), Modules(modules=(LARGE,)))):
        found = finding("TD704", find("TD704").fires().add(*extra))
        assert found.speedup is not None
        lows.append(1 - 1 / found.speedup.low)
        highs.append(found.at_best_ns)
    step_ns = 17 * MS  # of the rule's own example: 6 + 1 + 9 + 1
    assert (lows[1] - lows[0]) * step_ns == pytest.approx(60 * 2 * 1500 + 0.1 * MS, rel=0.02)
    assert highs[1] - highs[0] == pytest.approx(60 * 68 * 1500 + 0.45 * MS, rel=0.02)


def test_parameters_whose_nodes_are_still_alive_cost_no_stack() -> None:
    """Where a forward of 5 ms could not format 19 plain calls' worth for each of 400."""
    step = Evidence().add(budget(forward=5, backward=15, optimizer=5), flags(anomaly_mode=True))
    step.add(ops(op_line(34, "forward", 2, grad_calls=2.0)), DISPATCH)
    step.add(phases(forward=5, backward=15, optimizer=5))
    (one,) = optimizers("SGD").optimizers
    found = finding("TD704", step.add(Optimizers(optimizers=(replace(one, tensors=400),))))
    assert found.at_best_ns == pytest.approx((2 * 65 + 400 * 6) * DISPATCH.op_ns, rel=0.01)
