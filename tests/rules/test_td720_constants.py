"""Constants that are computed again: their time, phase by phase."""

from __future__ import annotations

import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, op_line, ops, phases
from tdiag.rules.thresholds import RARER_LOW_FRAC

RULE = find("TD720")
PARTS = {"prepare": 10.0, "forward": 40.0, "backward": 80.0}


def test_each_phase_gives_its_share_and_the_largest_line_is_named() -> None:
    """Half of preparing's calls, a quarter of forward's; what the optimizer does is its own."""
    lines = ops(
        op_line(11, "prepare", 2, elapsed_ns=15 * MS, constant_ns=7.5 * MS),
        op_line(20, "forward", 3, elapsed_ns=8 * MS, constant_ns=8 * MS),
        op_line(24, "forward", 30, elapsed_ns=24 * MS),
        op_line(40, "optimizer", 3, elapsed_ns=9 * MS, constant_ns=9 * MS),
    )
    found = run_rule(RULE, RULE.fires().add(budget(**PARTS), phases(**PARTS), lines))
    assert isinstance(found, Finding) and found.location is not None
    assert found.at_best_ns == pytest.approx(15 * MS)
    assert found.location.line == 20
    assert found.components == ("prepare", "forward")
    assert found.speedup is not None
    assert found.speedup.low == pytest.approx(130 / (130 - 15 * RARER_LOW_FRAC), rel=0.01)


@pytest.mark.parametrize(("other_ms", "line"), [(0.1, 52), (2.0, 36)])
def test_a_function_of_constants_alone_is_named_where_it_is_called(
    other_ms: float, line: int
) -> None:
    inside = at(36, "normalized")
    lines = ops(
        op_line(36, "forward", 3, elapsed_ns=8 * MS, constant_ns=8 * MS, at=inside),
        op_line(39, "forward", 1, elapsed_ns=other_ms * MS, at=at(39, "normalized")),
        op_line(53, "forward", 9, elapsed_ns=30 * MS, at=at(53, "forward")),
    )
    frames = (
        CallFrame(name="forward", file=inside.file, line=52, parent=-1, frac=0.2, user=True),
        CallFrame(name="normalized", file=inside.file, line=36, parent=0, frac=0.2, user=True),
    )
    trees = CallTrees(training=frames, workers=())
    found = run_rule(RULE, RULE.fires().add(budget(**PARTS), phases(**PARTS), lines, trees))
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == line


def test_before_the_forward_no_more_than_the_calls_own_time() -> None:
    """An environment takes 60 ms there, of which torch calls take 2, half of them on constants."""
    parts = {"prepare": 60, "forward": 20, "backward": 50}
    few = op_line(11, "prepare", 2, elapsed_ns=2 * MS, constant_ns=1 * MS)
    evidence = RULE.fires().add(budget(**parts), phases(**parts), ops(few))
    assert run_rule(RULE, evidence) is None


def test_on_a_device_it_abstains_where_its_work_was_not_counted() -> None:
    found = run_rule(RULE, RULE.fires().add(budget(device=True, compute=50)))
    assert isinstance(found, Abstained)
