"""Tensors that are built from Python data where no batch is made."""

from __future__ import annotations

import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, budget, op_line, ops


@pytest.mark.parametrize(("phase", "cls"), [("loss", "overhead"), ("prepare", "cpu")])
def test_index_triplets_of_a_loss_are_no_preprocessing(phase: str, cls: str) -> None:
    line = op_line(14, phase, 1, constructions=1.0, elapsed_ns=18 * MS, constructed_ns=18 * MS)
    step = budget(forward=8, backward=15, **{phase: 20})
    found = run_rule(find("TD207"), Evidence().add(step, ops(line)))
    assert isinstance(found, Finding) and found.cls == cls
