"""What calls lose if they get fewer rows or columns: not their fixed cost."""

from __future__ import annotations

import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find


def at_least(evidence: Evidence, code: str) -> float:
    """The low end of the gain, as a share of the step."""
    found = run_rule(find(code), evidence)
    assert isinstance(found, Finding) and found.speedup is not None
    return 1 - 1 / found.speedup.low


@pytest.mark.parametrize(("code", "calls"), [("TD740", 6), ("TD742", 4)])
def test_a_quarter_and_the_fixed_cost_of_the_calls_stay(code: str, calls: int) -> None:
    fires = find(code).fires()
    budget = fires.get(Budget)
    assert budget is not None
    half = at_least(fires, code)
    priced = at_least(fires.add(Dispatch(op_ns=1e5, grad_op_ns=1e6)), code)
    fixed = calls * 1e6 / budget.step_ns
    assert priced == pytest.approx((2 * half - fixed) * 0.75, abs=0.002)
    assert at_least(fires.add(Dispatch(op_ns=1e8, grad_op_ns=1e9)), code) == 0
