"""Communication on a CPU: what is said of it, and what of it can be won."""

from __future__ import annotations

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.ranks import REDUCER
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, budget, environment, late_by_turns
from tdiag.rules.td903_exposed_communication import on_cpu

EXPOSED = find("TD903")


def test_communication_on_a_cpu_speaks_of_ddp_only_where_it_is() -> None:
    reducing, by_hand = (run_rule(EXPOSED, on_cpu(40, name)) for name in (REDUCER, "all_reduce"))
    assert isinstance(reducing, Finding) and isinstance(by_hand, Finding)
    assert reducing.at_best_ns == by_hand.at_best_ns == 40 * MS
    assert "bucket_cap_mb" in reducing.fix.text
    assert "bf16" not in reducing.fix.text  # DDP refuses that hook on a CPU
    assert "bucket" not in by_hand.fix.text and "async_op=True" in by_hand.fix.text
    assert "in all_reduce at train.py:30" in by_hand.summary


def test_of_communication_on_a_cpu_only_what_is_no_waiting_can_be_won() -> None:
    found = run_rule(EXPOSED, on_cpu(40).add(late_by_turns(10, 30)))
    assert isinstance(found, Finding)
    assert found.at_best_ns == 10 * MS


def test_communication_that_no_one_saw_is_not_judged() -> None:
    step = budget(forward=20, backward=40)
    alone, two = (environment(world_size=n) for n in (1, 2))
    assert run_rule(EXPOSED, Evidence().add(step, alone)) is None
    assert isinstance(run_rule(EXPOSED, Evidence().add(step, two)), Abstained)
