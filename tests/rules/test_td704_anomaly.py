"""Anomaly detection: what it costs for each call with gradients, parameter and gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, HostOp, HostOps
from tdiag.evidence.training import Modules, Optimizers, Setting, Settings
from tdiag.model.diagnosis import Abstained
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, flags, module, op_line, ops, optimizers, phases
from tdiag.rules.td704_debugging_left_on import NODE

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


def traced(**ops: tuple[float, float]) -> HostOps:
    """Traced ops: calls per step, and µs of each."""
    return HostOps(
        ops=tuple(
            HostOp(name=name, count=count, self_ns=count * us * 1e3,
                   total_ns=count * us * 1e3)
            for name, (count, us) in ops.items()
        ),
        per_step=1000.0, total_per_step=1000.0, backward_of={},
    )  # fmt: skip


def test_it_costs_a_stack_for_each_node_as_long_as_views_show() -> None:
    """One call of attention records 200 nodes; views take 300 µs and other kinds of them 400."""
    node = f"{NODE}MulBackward0"
    names = {"aten::view": (100.0, 300.0), "aten::t": (20.0, 400.0), node: (200.0, 9.0),
             f"{NODE}torch::autograd::AccumulateGrad": (50.0, 9.0),
             "aten::ne": (150.0, 60.0), "aten::any": (150.0, 70.0)}  # fmt: skip
    step = Evidence().add(budget(forward=150, backward=70), flags(anomaly_mode=True), DISPATCH)
    step.add(phases(forward=150, backward=70))
    step.add(ops(op_line(34, "forward", 2, grad_calls=2.0, elapsed_ns=150 * MS)))
    found = finding("TD704", step.add(traced(**names)))
    assert found.speedup is not None
    assert found.at_best_ns == pytest.approx(200 * 0.4 * MS + 150 * 0.13 * MS, rel=0.01)
    assert 1 - 1 / found.speedup.low == pytest.approx(200 * 0.1583 * MS / (220 * MS), rel=0.02)


def test_it_is_where_a_framework_is_asked_for_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "trainer = Trainer(\n    devices=1,\n    detect_anomaly=True,\n)\ntrainer.fit()\n"
    )
    fit = Setting(name="anomaly", value=True, at=at(5, "main", file=str(script)), per_step=0.0)
    step = Evidence().add(budget(forward=6, backward=9), flags(anomaly_mode=True), DISPATCH)
    step.add(ops(op_line(34, "forward", 80, grad_calls=80.0)), Settings(settings=(fit,)))
    found = finding("TD704", step)
    assert found.location is not None and found.location.line == 3
