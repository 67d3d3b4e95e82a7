"""The verdict of a bare trace, where only the traced steps are known."""

from __future__ import annotations

from tdiag.diagnose.verdict import judge
from tdiag.evidence.machine import System
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Verdict
from tdiag.rules.examples import budget

from .test_verdict import STEP, TRACED, run


def trace(parts: dict[str, float]) -> Verdict:
    whole = budget(device=True, **({"compute": 100 - sum(parts.values())} | parts))
    return judge(Evidence().add(TRACED, whole), whole, ())


def test_in_a_bare_trace_a_tie_goes_against_the_host() -> None:
    """The profiler makes issuing work slower and nothing else."""
    assert trace({"launch": 28, "data_wait": 23}).cls == "input"
    assert trace({"launch": 28, "data_wait": 10}).cls == "overhead"
    assert run({"launch": 28, "data_wait": 23}, device=True).cls == "overhead"


def test_what_a_trace_does_not_hold_only_lowers_confidence() -> None:
    found = trace({"unattributed": 50, "comm": 30})
    assert found.cls == "comm"
    assert found.confidence <= 0.5


def test_unused_kinds_are_optional() -> None:
    """Nothing but the budget: a waste is still a waste."""
    whole = Budget(step_ns=STEP, components_ns={"data_wait_io": STEP}, has_device=False)
    assert judge(Evidence(), whole, ()).cls == "io"
    assert {Phases, System}.isdisjoint(Evidence().facts)
