"""The planted cases of ``benchmarks/accuracy.py`` are what they say: whole, marked, and enough."""

import ast
from pathlib import Path

import pytest

from tdiag.rules.catalogue import all_rules
from tdiag.trial.candidate import parse

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_case_is_whole_and_names_rules_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from planted.cases import CASES

    codes = {rule.code for rule in all_rules()}
    for case in CASES:
        for fixed in (False, True):
            for name, text in case.files(fixed).items():
                assert "$" not in text.replace("\\$", ""), (case.name, name)
                if name.endswith(".py"):
                    ast.parse(text)
        marked = any("# HERE" in part for part in case.waste.slow.values())
        assert bool(case.right()) >= marked
    planted = [case for case in CASES if not case.healthy]
    assert {code for case in planted for code in case.waste.codes} <= codes
    assert len(planted) >= 30
    assert len(CASES) - len(planted) >= 8
    assert len({case.name for case in CASES}) == len(CASES)
    assert any(case.hold_out for case in planted)


def test_a_change_that_does_the_same_as_the_fix_is_one_of_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from planted.cases import CASES

    changes = {case.waste.change.replace("$CORES", "2") for case in CASES} - {""}
    assert len(changes) >= 8
    for change in changes:
        assert parse(change).changes
