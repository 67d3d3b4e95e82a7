"""What every rule promises, whichever it is: one parametrised test a promise."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import msgspec
import pytest

from tdiag.diagnose.engine import run_rule, run_rules
from tdiag.errors import UsageError
from tdiag.evidence.steps import Budget
from tdiag.model.diagnosis import Abstained, Finding, VerdictClass
from tdiag.probe.trial.changes import names
from tdiag.rules import explain
from tdiag.rules.base import NOISE_FLOOR_FRAC, SOURCES, UNITS
from tdiag.rules.catalogue import HEADINGS, Rule, all_rules, find, needs
from tdiag.trial.candidate import parse

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOTS = Path(__file__).parent / "snapshots"
RULES = all_rules()
NEEDS = [
    (rule, name, kind)
    for rule in RULES
    for name, (kind, required) in needs(rule).items()
    if required
]

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)


def fired(rule: Rule) -> Finding:
    found = run_rule(rule, rule.fires())
    assert isinstance(found, Finding), found
    return found


@each_rule
def test_fires_on_its_example_exactly_as_recorded(rule: Rule) -> None:
    """Set TDIAG_WRITE_SNAPSHOTS=1 to record anew, then read the difference."""
    text = msgspec.json.format(msgspec.json.encode(fired(rule))).decode() + "\n"
    file = SNAPSHOTS / f"{rule.code}.json"
    if os.environ.get("TDIAG_WRITE_SNAPSHOTS"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@each_rule
def test_stays_clear_on_its_healthy_example(rule: Rule) -> None:
    assert run_rule(rule, rule.clear()) is None


@pytest.mark.parametrize(
    ("rule", "name", "kind"), NEEDS, ids=[f"{rule.code}-{name}" for rule, name, _ in NEEDS]
)
def test_abstains_in_the_users_words_without_a_kind_it_needs(
    rule: Rule, name: str, kind: type
) -> None:
    evidence = rule.fires()
    del evidence.facts[kind]
    evidence.missing[kind] = f"no {name}: the window was skipped"
    assert run_rule(rule, evidence) == Abstained(
        rule.code, rule.name, f"no {name}: the window was skipped"
    )


@each_rule
def test_needs_a_budget_to_claim_a_gain(rule: Rule) -> None:
    assert fired(rule).advisory or needs(rule).get("budget") == (Budget, True)


@each_rule
def test_documentation_is_complete(rule: Rule) -> None:
    assert tuple(rule.sections()) == HEADINGS
    assert all(len(body.split()) >= 4 for body in rule.sections().values())
    assert re.fullmatch(r"TD\d{3}", rule.code)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.name)
    assert rule.cls in VerdictClass.__args__


@each_rule
def test_every_number_in_the_code_has_a_name(rule: Rule) -> None:
    """Bare 0, 1, 2, 3 (halves, tops of lists) and 1e9 (ns in a second) may stand in ``check``."""
    body = rule.source.split("def check(")[1].split("def fires(")[0]
    code = re.sub(r"#.*", "", re.sub(r'"(?:[^"\\]|\\.)*"', '""', body))
    numbers = set(re.findall(r"(?<![\w.])\d[\d_.e]*", code))
    assert numbers <= {"0", "1", "2", "3", "0.0", "1.0", "1e9"}, numbers


@each_rule
def test_measures_carry_known_units_and_sources(rule: Rule) -> None:
    measures = fired(rule).evidence
    assert measures
    for measure in measures:
        assert measure.unit in UNITS, measure
        assert measure.source in SOURCES, measure
        assert (measure.unit == "text") == isinstance(measure.value, str), measure


@each_rule
def test_fix_names_the_place_when_it_is_known(rule: Rule) -> None:
    found = fired(rule)
    if found.location is not None:
        assert re.search(r"\w+\.py:\d+", found.fix.text), found.fix.text


@each_rule
def test_gain_obeys_amdahl_and_its_components(rule: Rule) -> None:
    found, budget = fired(rule), rule.fires().get(Budget)
    if found.advisory:
        assert (found.recoverable_ns, found.speedup) == (0, None)
        return
    assert budget is not None
    assert found.speedup is not None
    assert 1.0 <= found.speedup.low <= found.speedup.high
    at_best = found.at_best_ns
    assert at_best >= NOISE_FLOOR_FRAC * budget.step_ns * 0.99
    held = sum(budget.components_ns[name] for name in found.components)
    assert at_best <= held * 1.01  # what it is told by, the speed-up's low end, is rounded
    assert found.recoverable_ns <= held
    assert found.why_gain


@each_rule
def test_finding_says_the_pattern_and_the_fix_in_plain_sentences(rule: Rule) -> None:
    found = fired(rule)
    for sentence in (found.summary, found.fix.text):
        assert sentence.endswith(".")
        assert "None" not in sentence.replace("batch_size=None", "")
        assert "nan" not in sentence.split()


def test_what_comes_first_are_other_rules_and_never_both_ways() -> None:
    after = {rule.code: dict(rule.after) for rule in RULES}
    for code, others in after.items():
        for other, why in others.items():
            assert other in after and code not in after[other], (code, other)
            assert len(why.split()) >= 5 and not why.endswith(".")


@each_rule
def test_a_trial_measures_the_gain_or_the_rule_says_why_not(rule: Rule) -> None:
    change = fired(rule).fix.intervention
    if rule.predicts:
        assert bool(change) != bool(rule.untried), (change, rule.untried)
    else:
        assert not rule.untried
    if change:
        parse(change)
    for text in re.findall(r"`([a-z]+\.\w+)`", rule.untried):
        assert text in names(), text


def test_codes_and_names_are_unique_and_match_their_files() -> None:
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)
    files = sorted(file.stem for file in (ROOT / "tdiag" / "rules").glob("td[0-9]*_*.py"))
    stems = sorted(f"{rule.code.lower()}_{rule.name.replace('-', '_')}" for rule in RULES)
    assert files == stems


def test_the_rules_of_the_first_issue_are_there() -> None:
    first = (101, 201, 202, 206, 207, 301, 302, 303, 401, 501, 605, 701, 704, 706, 801, 803, 804)
    assert {f"TD{number}" for number in first} <= {rule.code for rule in RULES}


@each_rule
def test_explain_knows_a_rule_by_code_number_and_name(rule: Rule) -> None:
    text = explain(rule.code)
    assert text == explain(rule.name) == explain(rule.code.lower().removeprefix("td"))
    assert text.startswith(f"# {rule.code} {rule.name}\n")
    assert all(f"## {heading}" in text for heading in HEADINGS)
    assert all(threshold.source in text for threshold in rule.thresholds().values())


def test_explain_refuses_an_unknown_rule_and_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as refused:
        find("TD999")
    assert "TD201" in refused.value.hint


def test_pages_are_the_ones_the_rule_files_generate() -> None:
    """Run ``python scripts/generate_docs.py`` after changing a rule."""
    pages = runpy.run_path(str(ROOT / "scripts" / "generate_docs.py"))["pages"]()
    folder = ROOT / "docs" / "rules"
    assert {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.md")} == pages


def test_no_rule_fails_on_no_evidence_at_all() -> None:
    from tdiag.evidence.store import Evidence

    findings, abstained = run_rules(Evidence())
    assert findings == []
    assert {rule.code for rule in RULES} == {entry.code for entry in abstained}
    assert not any("itself failed" in entry.missing for entry in abstained)
