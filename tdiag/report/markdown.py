"""Markdown for a pull request or ``$GITHUB_STEP_SUMMARY``: short first, details folded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tdiag.model.diagnosis import Diagnosis, Finding
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
from tdiag.report.words import SAFETY, component
from tdiag.units import duration, faster, percent

_SYNTAX = re.compile(r"([\\`*_\[\]<>|~&$])")
_BLOCK = re.compile(r"^(\s*\d*)([#+=.)-])(?=[\s=-]|$)")  # what starts a list, heading or rule


def render(diagnosis: Diagnosis, page: Page) -> str:
    """GitHub-flavoured Markdown; names from the run are escaped and mention nobody."""
    texts = ("\n".join(lines) for _, lines in sections(diagnosis, page))
    return "\n\n".join(texts) + "\n"


def sections(diagnosis: Diagnosis, page: Page) -> Iterator[tuple[str, list[str]]]:
    """The report's parts, each with a plain title: the verdict, each finding, what follows."""
    yield "verdict", [*_verdict(diagnosis)]
    for number, finding in enumerate(ranked(diagnosis), 1):
        yield (
            f"{inert(finding.code)} {inert(finding.name)}",
            [*_finding(number, finding, diagnosis, page)],
        )
    if notes := [*advisories(diagnosis)]:
        lines = [f"- {f.code}: {prose(f.summary)} → {prose(f.fix.text)}" for f in notes]
        yield "worth knowing", ["**Worth knowing** (no measured cost)", "", *lines]
    if diagnosis.abstained:
        n = len(diagnosis.abstained)
        lines = [f"- {prose(why)}: {plain(' '.join(c))}" for why, c in unchecked(diagnosis)]
        fold = f"<details><summary>Could not check: {n}</summary>"
        yield "could not check", [fold, "", *lines, "", "</details>"]
    if diagnosis.notes:
        yield "notes", [f"> {prose(note.text)}" for note in diagnosis.notes]


def _verdict(diagnosis: Diagnosis) -> Iterator[str]:
    title, share = headline(diagnosis.verdict)
    yield f"### {plain(title)}{f': {share}' if share else ''}"
    yield ""
    yield prose(diagnosis.verdict.summary)
    if (top := best(diagnosis)) and top.speedup:
        gain = faster(top.speedup.low, top.speedup.high)
        yield f"**Best fix**, predicted {gain} faster: {prose(top.fix.text)}"
    yield from ("", *_budget(diagnosis)) if diagnosis.budget else ()


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
