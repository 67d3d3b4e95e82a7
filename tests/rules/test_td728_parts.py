"""Results that are thrown away: most of a line's, or a smaller part of a large line's."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import at

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


@pytest.mark.parametrize(("runs", "choosing_ms"), [(1, 0), (8, 6.4), (40, 32)])
def test_choosing_the_rows_of_each_expert_takes_time(runs: int, choosing_ms: float) -> None:
    """The step has 105 ms."""
    evidence = RULE.fires()
    known = evidence.get(Ops)
    assert known is not None
    head, *rest = known.lines
    plain = saved_ms(evidence)
    names = {"linear": 2.0 * runs, "gelu": float(runs)}
    evidence.add(replace(known, lines=(replace(head, names=names), *rest)))
    assert saved_ms(evidence) == pytest.approx(max(0.0, plain - choosing_ms), abs=0.2)


def saved_ms(evidence: Evidence) -> float:
    """At the low end."""
    found = run_rule(RULE, evidence)
    assert isinstance(found, Finding) and found.speedup is not None
    return 105 * (1 - 1 / found.speedup.low)


@pytest.mark.parametrize(
    ("used", "advice"),
    [
        ("cov.diagonal()", "only the diagonal"),
        ("cov[:, -1]", "the rows or positions"),
        ("cov.gather(1, items)", "the scores that are gathered"),
        ("cov.log_softmax(-1).gather(1, items)", "the rows or positions"),  # reads whole rows
    ],
)
def test_the_fix_is_that_of_what_the_function_reads(used: str, advice: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"def predict(a):\n    cov = a.T @ a\n    return {used}\n")
    evidence = RULE.fires()
    known = evidence.get(Ops)
    assert known is not None
    here = replace(known.lines[0], at=at(2, "predict", file=str(script)))
    found = run_rule(RULE, evidence.add(replace(known, lines=(here, *known.lines[1:]))))
    assert isinstance(found, Finding)
    assert advice in found.fix.text
