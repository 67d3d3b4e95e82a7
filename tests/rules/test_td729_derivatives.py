"""Derivatives of single elements, and those that only look like them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence, Kind
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Finding
from tdiag.rules import td729_derivatives_one_by_one as rule
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, budget, ops

RULE = find("TD729")
ROOF = Roof(
    flops_per_s={"float32": 1e9}, bytes_per_s=((1 << 30, 1e9),), source="measured", op_ns=1500,
    threads=2,
)  # fmt: skip


def found(*kinds: Kind, evidence: Evidence | None = None) -> Finding | None:
    evidence = evidence or RULE.fires()
    for kind in kinds:
        evidence.add(kind)
    result = run_rule(RULE, evidence)
    return result if isinstance(result, Finding) else None


def work(flops: float) -> Work:
    product = OpWork(
        name="aten::mm", dims=((8, 8), (8, 8)), dtype="float32", count=60, flops=flops, moved=0,
        host_ns=1e6, device_ns=None,
    )  # fmt: skip
    return Work(ops=(product,), calls=60)


def test_only_what_the_steps_work_leaves_is_promised() -> None:
    unknown, much, some, little = (
        found(),
        *(found(work(flops), ROOF) for flops in (12e6, 2.5e6, 1e6)),
    )
    assert unknown and much and some and little
    assert unknown.speedup and much.speedup and some.speedup and little.speedup
    assert unknown.speedup.low == much.speedup.low == 1.0
    assert 1.5 < some.speedup.low < 2.0  # half
    assert 2.0 < little.speedup.low < 5.0  # all but five times the least time
    assert little.speedup.high == much.speedup.high > 7


@pytest.mark.parametrize(
    "change",
    [
        {"names": {"grad": 80.0}},  # of a sum: the directions of a Laplacian, a penalty
        {"grad_calls": 0.0},  # without create_graph: nothing that the loss uses
        {"calls": 9.0, "names": {"grad of an element": 9.0}},  # a handful
    ],
)
def test_silent(change: dict[str, object]) -> None:
    own = RULE.fires().get(Ops)
    assert own
    grad, *rest = own.lines
    assert found(ops(replace(grad, **change), *rest)) is None


def test_a_model_called_for_each_is_another_rules() -> None:
    clean = RULE.fires().get(Phases)
    assert clean
    assert found(replace(clean, counts={**clean.counts, "forward": 80.0})) is None


def test_only_calls_of_the_same_loop_go_with_them() -> None:
    """The function also calls the model's layers, once."""
    own = RULE.fires().get(Ops)
    assert own
    grad, beside, rest = own.lines
    layers = replace(beside, calls=8.0, grad_calls=8.0)
    with_loop, without = found(), found(ops(grad, layers, rest))
    assert with_loop and without
    assert without.at_best_ns < with_loop.at_best_ns


def test_with_a_device_the_host_still_issues_one_backward() -> None:
    """Its work is next to nothing, but the forward pass takes the host 1 of 22 ms."""
    evidence = RULE.fires().add(work(1e3), ROOF)
    clean, counted = evidence.get(Phases), evidence.get(Ops)
    assert clean and counted
    kept = []
    for step in (evidence.get(Budget), budget(device=True, compute=1, launch=21)):
        assert step
        won = rule.check(step, clean, counted, evidence.get(Work), evidence.get(Roof))
        assert won and won.gain
        kept.append(won.gain.high_ns - won.gain.low_ns)
    assert kept[0] < 0.1 * MS
    assert kept[1] == pytest.approx(2 * MS)
