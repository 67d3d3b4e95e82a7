"""GitHub workflow commands: what regressed as annotations at the user's own lines."""

from __future__ import annotations

from collections.abc import Iterator

from tdiag.gate.outcome import Outcome
from tdiag.gate.report.words import advice, summary, title, value
from tdiag.model.place import Place
from tdiag.report.github import command
from tdiag.report.page import Page
from tdiag.report.text import relative

LEVELS = {"pass": "notice", "regressed": "error", "inconclusive": "warning"}


def render(outcome: Outcome, page: Page) -> str:
    """The verdict, then one line a counter that grew and a rule that newly fires."""
    level = LEVELS[outcome.verdict]
    said = "\n".join([summary(outcome), *outcome.reasons[1:], *advice(outcome)])
    head = command(level, {"title": f"tdiag check: {title(outcome)}"}, said)
    return "\n".join([head, *_annotations(outcome, page)]) + "\n"


def _annotations(outcome: Outcome, page: Page) -> Iterator[str]:
    for counter in outcome.counters:
        for line in counter.lines:
            if counter.failing and line.place:
                numbers = f"{value(counter, line.before)} → {value(counter, line.now)}"
                said = f"{counter.what}: {numbers}"
                yield command("warning", _at(line.place, counter.name, page), said)
    for found in outcome.findings:
        if found.location:
            at = _at(found.location, f"{found.code} {found.name}, new", page)
            yield command("warning", at, f"{found.summary}\nFix: {found.fix.text}")


def _at(place: Place, title: str, page: Page) -> dict[str, str]:
    at = {"file": relative(place.file, page.base_dir)}
    if place.line > 0:
        at["line"] = str(place.line)
    return {**at, "title": title}
