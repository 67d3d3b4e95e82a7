"""Broadcasting and summing: its time, the backward's included, and what one call saves of it."""

from __future__ import annotations

from typing import Any

import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, budget, op_line, ops, phases
from tdiag.rules.td721_broadcast_then_summed import CONTRACTED_HIGH, CONTRACTED_LOW

RULE = find("TD721")
PARTS = {"forward": 40.0, "backward": 80.0, "optimizer": 5.0}


def judged(*kinds: Any, **changes: Any) -> Finding | None:
    """A line that takes 30 of 40 ms of forward, 20 of them to broadcast and sum."""
    mine = {"elapsed_ns": 30 * MS, "contracted_ns": 20 * MS, "contraction": "product",
            "grad_calls": 4.0, **changes}  # fmt: skip
    lines = ops(op_line(9, "forward", 4, **mine), op_line(12, "forward", 2, elapsed_ns=10 * MS))
    found = run_rule(RULE, RULE.fires().add(budget(**PARTS), phases(**PARTS), lines, *kinds))
    assert found is None or isinstance(found, Finding)
    return found


def test_backward_counts_by_what_records_gradients() -> None:
    """Two thirds of what records: of 80 ms 53."""
    found = judged()
    assert found is not None and found.location is not None and found.location.line == 9
    total = 20 + 80 * 2 / 3
    most = 20 + 80 * 8 / 9  # its backward may take four times as long as the rest's
    assert found.at_best_ns == pytest.approx(most * (1 - 1 / CONTRACTED_HIGH) * MS, rel=0.01)
    assert found.speedup is not None
    saved = total * (1 - 1 / CONTRACTED_LOW)
    assert found.speedup.low == pytest.approx(125 / (125 - saved), rel=0.01)


def test_without_gradients_there_is_no_backward() -> None:
    found = judged(grad_calls=0.0)
    assert found is not None and found.components == ("forward",)


def test_a_difference_is_a_distance() -> None:
    found = judged(contraction="difference")
    assert found is not None and "torch.cdist" in found.fix.text
