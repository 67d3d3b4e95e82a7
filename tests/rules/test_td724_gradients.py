"""Gradients in many small passes, and the trainings that only look like it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.steps import Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, Ops
from tdiag.evidence.training import Optimizer, Optimizers
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import at, op_line, ops

RULE = find("TD724")
BETWEEN = op_line(41, "prepare", 200, turns=24.0)


def found(evidence: Evidence) -> Finding | None:
    result = run_rule(RULE, evidence)
    return result if isinstance(result, Finding) else None


def with_(lines: Ops | None = None, **changes: object) -> Evidence:
    evidence = RULE.fires()
    clean = evidence.get(Phases)
    assert clean is not None
    evidence.add(replace(clean, **changes))
    return evidence.add(lines) if lines else evidence


def test_the_sum_or_each_gradient() -> None:
    """Calls between the passes need each gradient; else one backward of the sum does."""
    summed = found(with_())
    assert summed and "torch.stack" in summed.fix.code
    own = RULE.fires().get(Ops)
    assert own
    single = found(with_(ops(*own.lines, BETWEEN)))
    assert single and "vmap(grad(" in single.fix.code
    assert summed.speedup and 1.5 < summed.speedup.low < 2.5


def test_the_line_of_the_derivative_is_named() -> None:
    own = RULE.fires().get(Ops)
    assert own
    grad = op_line(55, "backward", 24, turns=24.0, at=at(55, "noted"))
    single = found(with_(ops(*own.lines, grad), grad_calls=24.0))
    assert single and single.location and single.location.line == 55


@pytest.mark.parametrize(
    ("passes", "one_row", "told"),
    [
        (8.0, True, True),
        (8.0, False, False),  # steps of an attack: each needs the one before
        (3.0, True, False),  # an actor and two critics
    ],
)
def test_few_passes_count_if_each_takes_a_single_sample(
    passes: float, one_row: bool, told: bool
) -> None:
    """Eight single samples through an LSTM after each step: 5.3 times without them
    (benchmarks/drawn.jsonl)."""
    few = ops(
        op_line(20, "forward", 90 * passes, grad_calls=80.0 * passes, turns=passes,
                repeated=1.0, one_row=one_row),
        op_line(40, "loss", 2 * passes, grad_calls=2.0 * passes, turns=passes),
    )  # fmt: skip
    counts = {"forward": passes, "backward": passes, "optimizer": 1.0}
    assert (found(with_(few, counts=counts)) is not None) == told


@pytest.mark.parametrize(
    "changes",
    [
        {"batches": {0: 24.0}},  # accumulation: each pass has a batch of the loader
        {"counts": {"forward": 4.0, "backward": 24.0, "optimizer": 1.0}},  # TD722's
        {"counts": {"forward": 24.0, "backward": 24.0, "optimizer": 24.0}},  # each has its update
    ],
)
def test_other_reasons_for_many_passes(changes: dict[str, object]) -> None:
    assert found(with_(**changes)) is None


def test_a_search_along_a_line_needs_each_pass() -> None:
    lbfgs = Optimizer(name="LBFGS", created_at=None, tensors=4, config={})
    assert found(with_().add(Optimizers(optimizers=(lbfgs,)))) is None


def test_passes_that_do_work_are_left_alone() -> None:
    """The same passes where a call is cheap on this machine, so that it is not the calls' price."""
    assert found(with_().add(Dispatch(op_ns=50, grad_op_ns=200))) is None
