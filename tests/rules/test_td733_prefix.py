"""TD733 beyond its example."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, Ops
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules import td733_prefix_computed_again as rule
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS


def won(evidence: Evidence) -> float:
    found = run_rule(find("TD733"), evidence)
    assert isinstance(found, Finding)
    return found.at_best_ns / MS


def test_the_fixed_cost_of_the_calls_remains() -> None:
    """Of 60 ms in these calls, 50 of the positions before: times 72 ÷ 66 in the clean steps."""
    free = rule.fires().add(Dispatch(op_ns=0, grad_op_ns=0))
    assert won(free) - won(rule.fires()) == pytest.approx(1600 * 1500 / MS)


def test_the_backward_of_a_model_that_learns_from_it_counts() -> None:
    """All calls of the model record gradients: 50 of the 66 ms of such calls, so most of 9 ms."""
    evidence = rule.fires().add(Dispatch(op_ns=0, grad_op_ns=0))
    ops = evidence.get(Ops)
    assert ops is not None
    model, loss = ops.lines
    learning = replace(ops, lines=(replace(model, grad_calls=model.calls), loss))
    without = won(evidence)
    assert 50 / 66 * 9 < won(evidence.add(learning)) - without <= 9


def test_a_device_shows_no_time_of_calls_where_their_work_was_not_counted() -> None:
    evidence = rule.fires()
    step = evidence.facts.pop(next(kind for kind in evidence.facts if kind.__name__ == "Budget"))
    found = run_rule(find("TD733"), evidence.add(replace(step, has_device=True)))
    assert isinstance(found, Abstained)


def test_an_older_run_followed_no_sequences() -> None:
    evidence = rule.fires()
    ops = evidence.get(Ops)
    assert ops is not None
    assert run_rule(find("TD733"), evidence.add(replace(ops, prefixes=()))) is None
    assert not isinstance(run_rule(find("TD733"), rule.clear()), Abstained)
