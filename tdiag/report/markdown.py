"""Markdown for a pull request or ``$GITHUB_STEP_SUMMARY``: short first, details folded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tdiag.evidence.machine import SystemHistory
from tdiag.model.timeline import Timeline
from tdiag.report.document import (
    Block,
    Cell,
    Code,
    Document,
    Facts,
    Headline,
    Item,
    Line,
    Parts,
    Section,
    Table,
    Trend,
)
from tdiag.report.page import Page
from tdiag.report.summary import measure_name, measure_value
from tdiag.report.text import inert, spot
from tdiag.report.words import component
from tdiag.units import duration, percent

_SYNTAX = re.compile(r"([\\`*_\[\]<>|~&$])")
_BLOCK = re.compile(r"^(\s*\d*)([#+=.)-])(?=[\s=-]|$)")  # starts a list, heading or rule
_MARKS = {"warning": "❔ ", "error": "❌ ", "note": "✅ "}


def render(document: Document, page: Page) -> str:
    """GitHub-flavoured Markdown; names from the run are escaped and notify nobody."""
    texts = ("\n".join(lines) for _, lines in sections(document, page))
    return "\n\n".join(texts) + "\n"


def sections(document: Document, page: Page) -> Iterator[tuple[str, list[str]]]:
    """The report's parts, each with a plain title: the verdict, each finding, the rest."""
    if head := document.headline:
        yield "verdict", [*_headline(document, head, page)]
    for section in document.sections:
        for title, lines in _parts(section, page):
            if lines:
                yield title, lines
    if document.notes:
        yield "notes", [f"> {prose(note.text)}" for note in document.notes]


def _headline(document: Document, head: Headline, page: Page) -> Iterator[str]:
    name = "" if document.name == "tdiag" else f"{_MARKS[head.level]}{plain(document.name)}: "
    yield f"### {name}{plain(head.title)}{f': {plain(head.share)}' if head.share else ''}"
    if document.name != "tdiag" and head.aside:
        yield from ("", plain(head.aside))
    for line in head.lines:
        said = prose(line.text)
        if line.label:
            said = f"**{plain(line.label)}**: {said}"
        if line.at:
            said += f" at {code_span(spot(line.at, page.base_dir))}"
        yield from ("", said + (f", {plain(line.gain)}" if line.gain else ""))


def _parts(section: Section, page: Page) -> Iterator[tuple[str, list[str]]]:
    """Each ranked finding is a part; everything else in a section is one part."""
    if section.page_only:
        return
    rest: list[str] = []
    last: Block | None = None
    for block in section.blocks:
        if isinstance(block, Item) and block.number:
            yield f"{inert(block.rule)} {inert(block.name)}", [*_item(block, page)]
        elif lines := [*_block(block, page)]:
            listed = isinstance(block, Line) and not isinstance(last, Code)
            rest += ["", *lines] if rest and not listed else lines
            last = block
    if not rest:
        return
    aside = f" ({plain(section.aside)})" if section.aside else ""
    if section.folded:
        fold = f"<details><summary>{plain(section.title)}{aside}</summary>"
        rest = [fold, "", *rest, "", "</details>"]
    elif section.id not in ("budget", "findings") and section.title:
        rest = [f"**{plain(section.title)}**{aside}", "", *rest]
    elif section.id == "budget":
        rest = [*rest, "", plain(section.aside)]
    yield section.title.lower(), rest


def _block(block: Block, page: Page) -> Iterator[str]:
    if isinstance(block, Line):
        label = f" {plain(block.label)}" if block.label else ""
        at = f" at {code_span(spot(block.place, page.base_dir))}" if block.place else ""
        yield f"- {prose(block.text)}{at}{label}"
    elif isinstance(block, Facts):
        for row in block.rows:
            if not row.minor:
                more = f"  {prose(row.text)}"  # continues the row before
                yield f"- {plain(row.label)}: {prose(row.text)}" if row.label else more
    elif isinstance(block, Table):
        yield from _table(block, page)
    elif isinstance(block, Parts):
        yield from _budget(block)
    elif isinstance(block, Item):
        at = f" at {code_span(spot(block.place, page.base_dir))}" if block.place else ""
        change = f" → {prose(block.change)}" if block.change else ""
        rule = plain(f"{block.rule} {block.name}")
        yield f"- {prose(block.action)} ({rule}{at}): {prose(block.summary)}{change}"
        yield from (f"  {line}" for line in _fenced(block.code))
    elif isinstance(block, Code):
        yield from _fenced(block.text, block.language)
    elif isinstance(block, Trend):
        yield from _trend(block)
    else:  # drawings over time are only for a terminal and a page
        assert isinstance(block, Timeline | SystemHistory)


def _item(item: Item, page: Page) -> Iterator[str]:
    """The change and its gain; the rule and the place; then the evidence."""
    gain = f" · {plain(item.gain)}" if item.gain else ""
    yield f"**{item.number}. {prose(item.action)}**{gain}"
    at = f" at {code_span(spot(item.place, page.base_dir))}" if item.place else ""
    yield f"{plain(item.rule)} {plain(item.name)}{at} ({plain(item.safety)})"
    yield from ("", prose(item.summary))
    if item.change:
        yield from ("", *(f"→ {prose(x)}" for x in item.change.splitlines() if x.strip()))
    if item.code:
        yield from ("", *_fenced(item.code))
    yield from ("", "<details><summary>Evidence</summary>", "", "| | | |", "|---|--:|---|")
    for m in item.evidence:
        yield f"| {plain(measure_name(m))} | {plain(measure_value(m))} | {plain(m.source)} |"
    yield from ("", prose(item.why), "", "</details>")


def _fenced(code: str, language: str = "python") -> list[str]:
    """A code block whose fence is longer than any run of backticks within."""
    if not code:
        return []
    lines = [inert(line, 1200) for line in code.splitlines()]
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *lines, fence]


def _budget(found: Parts) -> Iterator[str]:
    total = sum(part.ns for part in found.parts)
    yield "| component | per step | share | |"
    yield "|---|--:|--:|---|"
    for part in found.parts:
        words = component(part.component)
        share = percent(part.ns / total) if total else "–"
        yield f"| {plain(words.label)} | {duration(part.ns)} | {share} | {plain(words.meaning)} |"
    yield f"| **step** | **{duration(total)}** | | |"


def _table(table: Table, page: Page) -> Iterator[str]:
    if table.absent:
        yield prose(table.absent)
        return
    numbers = [column.kind == "number" for column in table.columns]
    yield _row(plain(column.title) for column in table.columns)
    yield _row("--:" if number else "---" for number in numbers)
    for row in table.rows[: table.first]:
        yield _row(_cell(cell, page) for cell in row)
    if table.note:
        yield from ("", prose(table.note))


def _row(cells: Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell, page: Page) -> str:
    return code_span(spot(cell.place, page.base_dir)) if cell.place else plain(cell.text)


def _trend(found: Trend) -> Iterator[str]:
    yield from (f"- {prose(text)}" for text, _ in found.shifts.values())
    yield from ("", "| commit | subject | day (UTC) | verdict | step | change |")
    yield "|---|---|---|---|--:|--:|"
    for point in reversed(found.points):
        names = (plain(x) for x in (point.label, point.subject, point.day, point.verdict))
        yield f"| {' | '.join(names)} | {duration(point.ns)} | {point.change} |"


def plain(text: str) -> str:
    """Plain text in Markdown: no syntax, and no ``@name`` that would notify anyone."""
    escaped = _BLOCK.sub(r"\1\\\2", _SYNTAX.sub(r"\\\1", inert(text)))
    return escaped.replace("@", "@\u200b")


def code_span(text: str) -> str:
    """A code span whose fence is longer than any run of backticks within it."""
    shown = inert(text).replace("|", "\\|")
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    pad = " " if longest else ""
    return f"{'`' * (longest + 1)}{pad}{shown}{pad}{'`' * (longest + 1)}"


def prose(text: str) -> str:
    """A rule's sentence; text between backticks stays code."""
    parts = inert(" ".join(text.split()), 1200).split("`")
    if len(parts) % 2 == 0:
        return plain(text)
    return "".join(code_span(p) if i % 2 and p else plain(p) for i, p in enumerate(parts))
