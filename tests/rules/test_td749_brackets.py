"""Rows that brackets pick, with a device: there they were the faster way."""

from __future__ import annotations

from tdiag.diagnose.engine import run_rule
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import budget, device_time

RULE = find("TD749")


def test_nothing_is_said_with_a_device() -> None:
    assert isinstance(run_rule(RULE, RULE.fires()), Finding)
    on_device = RULE.fires().add(budget(device=True, compute=38, launch=2), device_time(40))
    assert run_rule(RULE, on_device) is None
