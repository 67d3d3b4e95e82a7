"""SARIF 2.1.0 (OASIS): what regressed as results at the user's own lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tdiag.gate.outcome import Outcome
from tdiag.gate.report.words import summary, value
from tdiag.model.place import Place
from tdiag.report.page import Page
from tdiag.report.sarif import SCHEMA, physical
from tdiag.report.text import inert

RULES = {
    "step-time": "The training step takes longer than it did",
    "work-counter": "A step does more than it did",
    "new-finding": "A rule of tdiag fires that did not",
}
LEVELS = {"pass": "none", "regressed": "error", "inconclusive": "note"}


def render(outcome: Outcome, page: Page) -> str:
    """One run. A passed check has no results."""
    rules = [{"id": id, "shortDescription": {"text": text}} for id, text in RULES.items()]
    driver = {"name": "tdiag check", "version": inert(outcome.tdiag), "rules": rules}
    results = list(_results(outcome, page)) if outcome.verdict != "pass" else []
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    text = msgspec.json.encode({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})
    return msgspec.json.format(text, indent=2).decode() + "\n"


def _results(outcome: Outcome, page: Page) -> Iterator[dict[str, Any]]:
    if outcome.verdict == "inconclusive" or (outcome.step and outcome.step.answer == "slower"):
        yield _result("step-time", LEVELS[outcome.verdict], summary(outcome), None, page)
    for counter in (c for c in outcome.counters if c.failing):
        numbers = f"{value(counter, counter.before)} → {value(counter, counter.now)}"
        said = f"{counter.what}: {numbers}"
        place = next((line.place for line in counter.lines if line.place), None)
        yield _result("work-counter", "error", said, place, page)
    for found in outcome.findings:
        said = f"{found.code} {found.name}: {found.summary}"
        yield _result("new-finding", "warning", said, found.location, page)


def _result(rule: str, level: str, text: str, place: Place | None, page: Page) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": rule, "ruleIndex": list(RULES).index(rule), "level": level,
        "message": {"text": inert(text, 1200)},
    }  # fmt: skip
    if place:
        result["locations"] = [{"physicalLocation": physical(place, page.base_dir)}]
    return result
