"""Rows that brackets pick, on a device: what its backward adds up, from the trace."""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.roofline import Work
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, budget, device_time

RULE = find("TD749")


def on_a_device(adding_ms: float) -> Evidence:
    evidence = RULE.fires()
    work = evidence.get(Work)
    assert work is not None
    made = tuple(replace(op, device_ns=adding_ms * MS) for op in work.ops)
    return evidence.add(Work(ops=made, calls=20.0), budget(device=True, compute=38, launch=2))


def test_at_best_all_of_the_adding_goes() -> None:
    untraced = run_rule(RULE, on_a_device(12))
    assert isinstance(untraced, Abstained) and untraced.missing == "no device activity was traced"
    found = run_rule(RULE, on_a_device(12).add(device_time(40)))
    assert isinstance(found, Finding)
    assert found.at_best_ns == 12 * MS
    assert found.speedup is not None
    assert found.speedup.low == 1
    assert found.components == ("compute",)
    assert "12.0 ms with adding up their gradients" in found.summary


def test_silent_where_backward_adds_nothing_up() -> None:
    assert run_rule(RULE, on_a_device(0).add(device_time(40))) is None
