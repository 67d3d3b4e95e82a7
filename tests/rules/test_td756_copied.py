"""Buffers that are copied to change a part."""

from __future__ import annotations

import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, stack, stacks

RULE = find("TD756")


@pytest.mark.parametrize(("sampled", "at_best_ms"), [(0.2, 4.2), (0.5, 4.44)])
def test_samples_raise_the_high_end_alone(sampled: float, at_best_ms: float) -> None:
    """Copying takes 4.2 of 4.3 ms at line 58 while calls are counted, and a step 9.1 ms."""
    evidence = RULE.fires().add(stacks((stack(58, sampled, phase="prepare"),)))
    found = run_rule(RULE, evidence)
    assert isinstance(found, Finding)
    assert found.at_best_ns == pytest.approx(at_best_ms * MS, rel=0.02)
    assert 2 * found.recoverable_ns - found.at_best_ns == pytest.approx(0.9 * 4.2 * MS, rel=0.02)
