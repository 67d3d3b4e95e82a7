"""Slices taken one by one: what their backward fills and adds, and where."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.roofline import Work
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find

RULE = find("TD750")


def changed(fills: float, adds: float) -> Evidence:
    evidence = RULE.fires()
    work = evidence.get(Work)
    assert work is not None
    counts = {"aten::fill_": fills, "aten::add_": adds, "aten::mm": 100.0}
    made = tuple(replace(op, count=counts[op.name]) for op in work.ops)
    return evidence.add(Work(ops=made, calls=work.calls))


@pytest.mark.parametrize(
    ("fills", "adds", "fires"),
    [
        (3.0, 2.0, True),
        (24.0, 16.0, True),  # queries, keys and values of eight layers
        (2.0, 1.0, False),
        (100.0, 0.0, False),  # a slice of each of a hundred tensors
    ],
)
def test_three_slices_of_one_tensor_are_the_least(fills: float, adds: float, fires: bool) -> None:
    assert isinstance(run_rule(RULE, changed(fills, adds)), Finding) is fires
