"""docs/tips.md: every tip of the articles is found by `tdiag explain`, and leads to a rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tdiag.rules.catalogue import all_rules, speaking_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tips.md"
ROW = re.compile(r"^\| (.+) \| `(.+)` \| ([\d ]+) \| ([TD\d ]+) \|$", re.MULTILINE)
ROWS = [(tip, words, codes.split()) for tip, words, _, codes in ROW.findall(PAGE.read_text())]
# What none of the articles speaks of; the rest of the catalogue is theirs.
OURS = {
    "TD105", "TD106", "TD213", "TD214", "TD216", "TD217", "TD218", "TD219", "TD220", "TD221",
    "TD222", "TD223", "TD224", "TD225", "TD226", "TD227", "TD228", "TD229", "TD230", "TD231",
    "TD306", "TD307",
    "TD603", "TD604", "TD608", "TD609", "TD610", "TD611", "TD612", "TD613", "TD614", "TD615",
    "TD622", "TD623", "TD701", "TD707", "TD708", "TD709", "TD710", "TD711", "TD712", "TD713",
    "TD714", "TD715", "TD716", "TD717", "TD718", "TD719", "TD720", "TD721", "TD722", "TD723",
    "TD724", "TD725", "TD726", "TD727", "TD728", "TD729", "TD730", "TD731", "TD732", "TD733",
    "TD734", "TD735", "TD736", "TD737", "TD738", "TD739", "TD740", "TD741", "TD742", "TD743",
    "TD744", "TD745", "TD746", "TD747", "TD748", "TD749", "TD750", "TD751", "TD752", "TD753",
    "TD754", "TD755", "TD756", "TD757", "TD758", "TD810", "TD811", "TD812", "TD813", "TD903",
    "TD904", "TD906", "TD907", "TD908",
}  # fmt: skip


def test_the_page_is_read_whole() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert len(ROWS) == len(rows) - 1


@pytest.mark.parametrize(("tip", "words", "codes"), ROWS, ids=[words for _, words, _ in ROWS])
def test_a_tip_is_found_by_its_words(tip: str, words: str, codes: list[str]) -> None:
    found = [rule.code for rule in speaking_of(words)]
    assert set(codes) <= set(found), f"{tip}: {found}"


def test_every_rule_is_a_tip_or_our_own() -> None:
    told = {code for _, _, codes in ROWS for code in codes}
    assert told | OURS == {rule.code for rule in all_rules()}
    assert not told & OURS
