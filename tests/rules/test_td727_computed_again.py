"""Derivatives that are computed several times in a step."""

from __future__ import annotations

import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, op_line, ops, phases


@pytest.mark.parametrize(("again_ms", "saved_ms"), [(24.0, 18.0), (0.0, None)])
def test_the_gradient_of_a_loss_for_each_pair_of_tasks(
    again_ms: float, saved_ms: float | None
) -> None:
    """36 derivatives of 32 ms when counted, 24 ms in clean steps: three of four repeat one."""
    grads = op_line(
        14, "backward", 36, names={"grad": 36.0}, elapsed_ns=32 * MS, again_ns=again_ms * MS,
        at=at(14, "flat_grad"),
    )  # fmt: skip
    step, clean = budget(forward=2, backward=24), phases(forward=2, backward=24)
    found = run_rule(find("TD727"), Evidence().add(step, clean, ops(grads)))
    assert isinstance(found, Finding) is (saved_ms is not None)
    if isinstance(found, Finding) and saved_ms:
        assert found.location and found.location.line == 14
        assert found.at_best_ns == pytest.approx(saved_ms * MS)
