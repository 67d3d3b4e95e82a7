"""Markdown for a pull request or ``$GITHUB_STEP_SUMMARY``: short first, details folded."""

from __future__ import annotations

from collections.abc import Iterator

from tdiag.gate.outcome import Outcome
from tdiag.gate.report.words import (
    advice,
    interval,
    mean_interval,
    method,
    summary,
    title,
    value,
)
from tdiag.report.markdown import code_span, plain, prose
from tdiag.report.page import Page
from tdiag.report.text import spot
from tdiag.report.words import component
from tdiag.units import duration

MARKS = {"pass": "✅", "regressed": "❌", "inconclusive": "❔"}


def render(outcome: Outcome, page: Page) -> str:
    """GitHub-flavoured Markdown; names from the run are escaped and mention nobody."""
    return "\n".join(_lines(outcome, page)) + "\n"


def _lines(outcome: Outcome, page: Page) -> Iterator[str]:
    yield f"### {MARKS[outcome.verdict]} tdiag check: {plain(title(outcome))}"
    yield ""
    yield f"{code_span(outcome.command)} against {code_span(outcome.against)}"
    yield from ("", plain(summary(outcome)))
    for text in (*(f"also {r}" for r in outcome.reasons[1:]), *advice(outcome)):
        yield f"- {plain(text)}"
    yield from ("", "| | before | now | change |", "|---|--:|--:|---|")
    if step := outcome.step:
        times = f"{duration(step.before_ns)} | {duration(step.now_ns)}"
        yield f"| typical step | {times} | {plain(interval(step))} |"
        yield f"| mean step | | | {plain(mean_interval(step))} |"
    for cost in outcome.side_costs:
        yield f"| {plain(cost.name)} | {value(cost, cost.before)} | {value(cost, cost.after)} | |"
    for counter in outcome.counters:
        numbers = f"{value(counter, counter.before)} | {value(counter, counter.now)}"
        yield f"| {plain(counter.what)} | {numbers} | |"
    yield from _lines_of_code(outcome, page)
    yield from _components(outcome)
    for found in outcome.findings:
        at = f" at {code_span(spot(found.location, page.base_dir))}" if found.location else ""
        yield from ("", f"**New: {plain(found.code)} {plain(found.name)}**{at}")
        yield prose(found.summary)
    yield ""
    yield from (f"> {plain(text)}" for text in (*outcome.notes, *method(outcome)))


def _lines_of_code(outcome: Outcome, page: Page) -> Iterator[str]:
    lines = [(c, line) for c in outcome.counters for line in c.lines]
    if not lines:
        return
    yield from ("", "| line | counter | before | now | |", "|---|---|--:|--:|---|")
    for counter, line in lines:
        where = code_span(spot(line.place, page.base_dir)) if line.place else "gone"
        numbers = f"{value(counter, line.before)} | {value(counter, line.now)}"
        mark = "in the diff" if line.in_diff else ""
        yield f"| {where} | {plain(counter.name)} | {numbers} | {mark} |"


def _components(outcome: Outcome) -> Iterator[str]:
    if not outcome.components:
        return
    yield from ("", "<details><summary>Where the step's time goes</summary>", "")
    yield from ("| component | before | now |", "|---|--:|--:|")
    for row in outcome.components:
        label = plain(component(row.name).label)
        yield f"| {label} | {duration(row.before)} | {duration(row.after)} |"
    yield from ("", "</details>")
