"""TD738 beyond its example: what the work of the step leaves of its gain."""

from __future__ import annotations

import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.torch_ops import HostOp, HostOps
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, budget, phases

RULE = find("TD738")
ROOF = Roof(flops_per_s={"float32": 1e9}, bytes_per_s=((1 << 30, 1e9),), source="measured")


@pytest.mark.parametrize(
    ("best_ms", "low"),
    [
        (None, 1.6),  # half of it
        (10.0, 1.6),  # five times as much is more than half
        (1.0, 2.9),  # all but 5 of 58 ms; a quarter of the other calls' backward is theirs, too
    ],
)
def test_the_low_end_leaves_half_or_the_work_of_the_step(best_ms: float | None, low: float) -> None:
    evidence = RULE.fires()
    if best_ms is not None:
        product = OpWork(
            name="aten::mm", dims=((8, 8), (8, 8)), dtype="float32", count=1,
            flops=best_ms * 1e6, moved=0, host_ns=1e6, device_ns=None,
        )  # fmt: skip
        evidence.add(ROOF).add(Work(ops=(product,), calls=60))
    found = run_rule(RULE, evidence)
    assert isinstance(found, Finding) and found.speedup
    assert found.speedup.low == pytest.approx(low, rel=0.05)


def test_the_high_end_leaves_no_gradients_to_clear_and_no_garbage_of_them() -> None:
    parts = {"forward": 5, "loss": 1, "backward": 12, "optimizer": 40, "prepare": 10}
    cleared = HostOps(per_step=9, total_per_step=20, ops=(), backward_of={},
                      zero_grad_frac={"prepare": 0.8})  # fmt: skip
    evidence = RULE.fires().add(budget(**parts), phases(**parts))
    at_best = []
    for more in ((), (budget(**parts, gc=7),), (cleared,)):
        found = run_rule(RULE, evidence.add(*more))
        assert isinstance(found, Finding)
        at_best.append(found.at_best_ns / MS)
    assert at_best[1] - at_best[0] == pytest.approx(7)
    assert at_best[2] - at_best[1] == pytest.approx(0.8 * 10, rel=0.01)


def test_the_trace_tells_their_part_of_backward() -> None:
    """Three quarters of it writes gradients and divides that of the join."""
    node = "autograd::engine::evaluate_function: "
    times = {"torch::autograd::AccumulateGrad": 6.0, "StackBackward0": 3.0, "MmBackward0": 3.0}
    traced = HostOps(
        per_step=9, total_per_step=20, backward_of={},
        ops=tuple(
            HostOp(name=node + name, count=1, self_ns=0, total_ns=ms * MS)
            for name, ms in times.items()
        ),
    )  # fmt: skip
    plain, by_trace = run_rule(RULE, RULE.fires()), run_rule(RULE, RULE.fires().add(traced))
    assert isinstance(plain, Finding) and isinstance(by_trace, Finding)
    assert by_trace.at_best_ns > plain.at_best_ns
    assert "their part of backward" in by_trace.why_gain
