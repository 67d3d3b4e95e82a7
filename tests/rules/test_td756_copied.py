"""Buffers that are copied to change a part."""

from __future__ import annotations

import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, op_line, ops, phases, stack, stacks

RULE = find("TD756")


@pytest.mark.parametrize(("sampled", "at_best_ms"), [(0.2, 1.25 * 4.2), (0.55, 1.25 * 4.89)])
def test_samples_raise_the_high_end_alone(sampled: float, at_best_ms: float) -> None:
    """Copying takes 4.2 of 4.3 ms at line 58 while calls are counted, and a step 9.1 ms."""
    evidence = RULE.fires().add(stacks((stack(58, sampled, phase="prepare"),)))
    found = run_rule(RULE, evidence)
    assert isinstance(found, Finding)
    assert found.at_best_ns == pytest.approx(at_best_ms * MS, rel=0.02)
    assert 2 * found.recoverable_ns - found.at_best_ns == pytest.approx(0.9 * 4.2 * MS, rel=0.02)


def test_a_table_that_is_copied_after_the_step() -> None:
    """A memory bank of which each batch changes a few rows: 28 of 36 ms after the step."""
    line = op_line(30, "after_step", 1, elapsed_ns=30 * MS, copied_on_ns=28 * MS)
    step = budget(forward=5, backward=10, optimizer=2, other=36)
    clean = phases(forward=5, backward=10, optimizer=2, after_step=36)
    found = run_rule(RULE, Evidence().add(step, clean, ops(line)))
    assert isinstance(found, Finding) and found.location == at(30)
    assert "other" in found.components
    assert found.speedup is not None and found.speedup.low > 53 / (53 - 0.9 * 28 + 1)
