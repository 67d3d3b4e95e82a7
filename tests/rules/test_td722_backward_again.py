"""Backward passes are told from accumulation and from several updates by what else repeats."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, phases
from tdiag.rules.td722_backward_again_and_again import fires

RULE = find("TD722")


@pytest.mark.parametrize(
    ("counts", "again"),
    [
        ({"forward": 1.0, "backward": 2.0}, True),
        ({"forward": 4.0, "backward": 4.0}, False),  # gradients are accumulated
        ({"forward": 1.0, "backward": 2.0, "optimizer": 2.0}, False),  # an update for each
        ({"backward": 6.0}, False),  # no module was seen: what is walked is not known
    ],
)
def test_a_backward_for_each_forward_or_update_is_usual(
    counts: dict[str, float], again: bool
) -> None:
    found = run_rule(RULE, fires().add(phases(counts, forward=2, backward=10)))
    assert isinstance(found, Finding) is again


def test_derivatives_that_a_loss_needs_are_no_backward() -> None:
    """A physics-informed loss asks for four, and backward runs once."""
    clean = phases({"forward": 1.0, "backward": 5.0}, forward=2, backward=10)
    found = run_rule(RULE, fires().add(replace(clean, grad_calls=4.0)))
    assert not isinstance(found, Finding)


def test_one_pass_in_six_stays_at_the_line_that_calls_backward() -> None:
    found = run_rule(RULE, fires())
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == 28
    assert found.at_best_ns == pytest.approx(10 * 5 / 6 * MS, rel=0.01)
    assert found.speedup is not None and found.speedup.low == 1.0
