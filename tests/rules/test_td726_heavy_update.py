"""The work of an optimizer of the script's own."""

from __future__ import annotations

import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import at, op_line, ops, stack, stacks

RULE = find("TD726")


@pytest.mark.parametrize("framework", [False, True])
def test_the_line_of_a_frameworks_loop_is_no_optimizer(framework: bool) -> None:
    """In Lightning the update, clipping and callbacks all lie below `trainer.fit`."""
    evidence: Evidence = RULE.fires()
    known, sampled = evidence.get(Ops), evidence.get(Stacks)
    assert known is not None and sampled is not None
    where = at(122, "main")
    update = op_line(122, "optimizer", 12, at=where, elapsed_ns=12e6)
    loss = op_line(122, "loss", 2, at=where, elapsed_ns=0.1e6)
    evidence.add(ops(update, *([loss] if framework else [])))
    evidence.add(stacks((stack(122, 0.8, function="main"),)))
    assert isinstance(run_rule(RULE, evidence), Finding) is not framework
