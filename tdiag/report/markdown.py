"""Markdown for a pull request or ``$GITHUB_STEP_SUMMARY``: short first, details folded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tdiag.diagnose.model import Diagnosis, Finding
from tdiag.report.page import Page
from tdiag.report.summary import (
    advisories,
    best,
    headline,
    measure_name,
    measure_value,
    ranked,
    unchecked,
    why,
)
from tdiag.report.text import inert, spot
from tdiag.report.units import duration, faster, percent
from tdiag.report.words import SAFETY, component

_SYNTAX = re.compile(r"([\\`*_\[\]<>|~&$])")
_BLOCK = re.compile(r"^(\s*\d*)([#+=.)-])(?=[\s=-]|$)")  # what starts a list, heading or rule


def render(diagnosis: Diagnosis, page: Page) -> str:
    """GitHub-flavoured Markdown; names from the run are escaped and mention nobody."""
    return "\n".join(_lines(diagnosis, page)) + "\n"


def _lines(diagnosis: Diagnosis, page: Page) -> Iterator[str]:
    title, share = headline(diagnosis.verdict)
    yield f"### {plain(title)}{f': {share}' if share else ''}"
    yield ""
    yield prose(diagnosis.verdict.summary)
    if (top := best(diagnosis)) and top.speedup:
        gain = faster(top.speedup.low, top.speedup.high)
        yield f"**Best fix**, predicted {gain} faster: {prose(top.fix.text)}"
    yield from ("", *_budget(diagnosis)) if diagnosis.budget else ()
    for number, finding in enumerate(ranked(diagnosis), 1):
        yield from ("", *_finding(number, finding, diagnosis, page))
    if notes := [*advisories(diagnosis)]:
        yield from ("", "**Worth knowing** (no measured cost)", "")
        yield from (f"- {f.code}: {prose(f.summary)} → {prose(f.fix.text)}" for f in notes)
    if diagnosis.abstained:
        n = len(diagnosis.abstained)
        yield from ("", f"<details><summary>Could not check: {n}</summary>", "")
        yield from (f"- {prose(why)}: {plain(' '.join(c))}" for why, c in unchecked(diagnosis))
        yield from ("", "</details>")
    yield from ("", *(f"> {prose(note)}" for note in diagnosis.notes)) if diagnosis.notes else ()


def _budget(diagnosis: Diagnosis) -> Iterator[str]:
    total = sum(c.ns for c in diagnosis.budget)
    yield "| component | per step | share | |"
    yield "|---|--:|--:|---|"
    for part in sorted(diagnosis.budget, key=lambda c: -c.ns):
        words = component(part.component)
        share = percent(part.ns / total) if total else "–"
        yield f"| {plain(words.label)} | {duration(part.ns)} | {share} | {plain(words.meaning)} |"
    if step := diagnosis.step:
        spread = f"median {duration(step.median_ns)}, p90 {duration(step.p90_ns)}"
        yield f"| **step** | **{duration(step.mean_ns)}** | | {spread}, {step.count} steps |"


def _finding(number: int, finding: Finding, diagnosis: Diagnosis, page: Page) -> Iterator[str]:
    gain = finding.speedup
    title = f"**{number}. {plain(finding.code)} {plain(finding.name)}**"
    yield title + (f" · {faster(gain.low, gain.high)} faster" if gain else "")
    if finding.location:
        yield f"at {code_span(spot(finding.location, page.base_dir))}"
    yield from ("", prose(finding.summary), "")
    yield f"→ {prose(finding.fix.text)} ({SAFETY[finding.fix.safety]})"
    yield from ("", "<details><summary>Evidence</summary>", "", "| | | |", "|---|--:|---|")
    for m in finding.evidence:
        yield f"| {plain(measure_name(m))} | {plain(measure_value(m))} | {plain(m.source)} |"
    yield from ("", prose(why(finding, diagnosis)), "", "</details>")


def plain(text: str) -> str:
    """Plain text in Markdown: no syntax, and no ``@name`` that would notify somebody."""
    escaped = _BLOCK.sub(r"\1\\\2", _SYNTAX.sub(r"\\\1", inert(text)))
    return escaped.replace("@", "@\u200b")


def code_span(text: str) -> str:
    """A code span whose fence is longer than any run of backticks within it."""
    shown = inert(text).replace("|", "\\|")
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    pad = " " if longest else ""
    return f"{'`' * (longest + 1)}{pad}{shown}{pad}{'`' * (longest + 1)}"


def prose(text: str) -> str:
    """A rule's sentence: what it put between backticks stays code."""
    parts = inert(" ".join(text.split()), 1200).split("`")
    if len(parts) % 2 == 0:
        return plain(text)
    return "".join(code_span(p) if i % 2 and p else plain(p) for i, p in enumerate(parts))
