"""Results that are thrown away: most of a line's, or a smaller part of a large line's."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find

RULE = find("TD728")


@pytest.mark.parametrize(
    ("thrown_ms", "word"),
    [
        (15, "Most"),  # of 16 ms, in a step of 105
        (9, "Most"),
        (6, ""),  # the last block of an encoder, of which the first token is read
    ],
)
def test_an_index_of_the_input_saves_what_a_line_mostly_computes(
    thrown_ms: float, word: str
) -> None:
    assert judged(thrown_ms, line_ms=16) == word


def test_a_large_part_of_the_step_is_worth_a_change_inside_the_model() -> None:
    """The scores of all positions are a smaller part of the line that calls the whole model."""
    assert judged(15, line_ms=40) == "Part"
    assert judged(6, line_ms=40) == ""


def judged(thrown_ms: float, line_ms: float) -> str:
    """The first word of the finding, or "" without one."""
    evidence = RULE.fires()
    known = evidence.get(Ops)
    assert known is not None
    head, *rest = known.lines
    changed = replace(head, thrown_away_ns=thrown_ms * 1e6, elapsed_ns=line_ms * 1e6)
    found = run_rule(RULE, evidence.add(replace(known, lines=(changed, *rest))))
    return found.summary.split()[0] if isinstance(found, Finding) else ""
