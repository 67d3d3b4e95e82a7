"""What anomaly detection costs beyond the calls that record gradients."""

from __future__ import annotations

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Modules
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, module, optimizers

STEP_NS = 17 * MS  # of the rule's own example: 6 + 1 + 9 + 1


def cost(evidence: Evidence) -> tuple[float, int]:
    """Low and high end, ns a step."""
    found = run_rule(find("TD704"), evidence)
    assert isinstance(found, Finding) and found.speedup
    return STEP_NS * (1 - 1 / found.speedup.low), found.at_best_ns


def test_each_parameters_gradient_is_looked_at_for_nan() -> None:
    """60 tensors at two to six plain calls of 1.5 µs: 0.18 to 0.54 ms; a million numbers at 1 to
    4.5 ns."""
    evidence = find("TD704").fires()
    low, high = cost(evidence)
    large = Modules(modules=(module("Net", parameters=1_000_000, parameter_bytes=4_000_000),))
    more_low, more_high = cost(evidence.add(optimizers("Adam"), large))
    assert abs(more_low - low - 1.18 * MS) < 0.02 * MS
    assert abs(more_high - high - 5.04 * MS) < 0.05 * MS
