"""The ranked findings, and the advisories apart from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tdiag.diagnose.model import Diagnosis, Finding, Measure
from tdiag.report.page import Page
from tdiag.report.text import clip, code, inert, location, prose
from tdiag.report.units import duration, faster, quantity
from tdiag.report.words import ACCENT, CODE, GOOD, HEAD, QUIET, SAFETY

FIRST = 5  # findings shown in full unless all are asked for; nobody acts on more at a time
FIRST_ADVISORIES = 3
_INDENT = 4
_UNIT_SUFFIXES = ("_ns", "_bytes", "_frac")


def ranked(diagnosis: Diagnosis) -> list[Finding]:
    """The findings with a measured cost, in the order of the diagnosis (largest win first)."""
    return [f for f in diagnosis.findings if not f.advisory]


def advisories(diagnosis: Diagnosis) -> list[Finding]:
    return [f for f in diagnosis.findings if f.advisory]


def findings(diagnosis: Diagnosis, page: Page) -> Iterable[RenderableType]:
    """Each ranked finding in full; of a healthy run only a line each, so that nothing is pushed."""
    every = ranked(diagnosis)
    shown = every if page.all_findings else every[:FIRST]
    brief = diagnosis.verdict.healthy and not page.all_findings
    for number, finding in enumerate(shown, 1):
        if number > 1 and not brief:
            yield Text()
        yield _brief(finding, page) if brief else _finding(number, finding, page)
    yield from _rest(len(every) - len(shown), "more finding", page)


def advice(diagnosis: Diagnosis, page: Page) -> Iterable[RenderableType]:
    """One short entry an advisory."""
    every = advisories(diagnosis)
    shown = every if page.all_findings else every[:FIRST_ADVISORIES]
    yield from (_brief(f, page) for f in shown)
    yield from _rest(len(every) - len(shown), "more", page)


def _rest(hidden: int, what: str, page: Page) -> Iterable[Text]:
    if hidden:
        plural = "s" if hidden > 1 and what.endswith("finding") else ""
        yield Text(f"    … {hidden} {what}{plural}: --all shows every one", style=QUIET)


def _brief(finding: Finding, page: Page) -> RenderableType:
    text = Text.assemble((inert(finding.code, 12), QUIET), " ", code(finding.summary, CODE), " ")
    if finding.location:
        text.append_text(location(finding.location, page.base_dir, page.width // 2, ACCENT))
    text.append_text(Text.assemble(" → ", code(finding.fix.text, CODE)))
    return Padding(text, (0, 1, 0, _INDENT))


def _finding(number: int, finding: Finding, page: Page) -> RenderableType:
    said = Group(*_said(finding, page))
    body: RenderableType
    if page.wide:
        body = Table.grid(padding=(0, 3, 0, 0), expand=True)
        body.add_column(ratio=11)
        body.add_column(ratio=9)
        body.add_row(said, _evidence(finding.evidence, (page.width - 8) * 9 // 20))
    else:
        where, summary, *rest = said.renderables
        facts = Padding(_evidence(finding.evidence, page.width - 8), (0, 0, 0, 2))
        body = Group(where, summary, facts, *rest)
    return Group(_title(number, finding, page), Padding(body, (0, 1, 0, _INDENT)))


def _title(number: int, finding: Finding, page: Page) -> Text:
    gain = f"{faster(finding.speedup.low, finding.speedup.high)} faster" if finding.speedup else ""
    lead = Text.assemble((f"{number:>3} ", HEAD), (inert(finding.code, 12), QUIET), " ")
    name = clip(inert(finding.name), page.width - lead.cell_len - len(gain) - 3)
    lead.append(name, HEAD)
    lead.append(" " * (page.width - lead.cell_len - len(gain) - 1))
    lead.append(gain, f"bold {GOOD}")
    lead.no_wrap = True
    return lead


def _said(finding: Finding, page: Page) -> Iterable[RenderableType]:
    """Place and summary, always; then the change to make and why it wins what it wins."""
    room = page.width // 2 if page.wide else page.width - _INDENT - 2
    place = finding.location
    yield location(place, page.base_dir, room, ACCENT) if place else Text("whole run", QUIET)
    yield code(finding.summary, CODE)
    yield _change(finding)
    if finding.speedup:
        saved = prose(f"Saves about {duration(finding.recoverable_ns)} a step: ")
        yield code(saved + finding.why_gain, CODE, QUIET)


def _change(finding: Finding) -> RenderableType:
    """The change as the user will type it, a line of its own for each line of the fix."""
    lines = [line for line in finding.fix.text.splitlines() if line.strip()]
    text = Text("\n").join([Text(prose(line).replace("`", ""), CODE) for line in lines])
    text.append(f"  ({SAFETY[finding.fix.safety]})", QUIET)
    grid = Table.grid()
    grid.add_row(Text("→ ", CODE), text)
    return grid


def _evidence(measures: Sequence[Measure], width: int) -> RenderableType:
    """Names, right-aligned values, and which profiler said so."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", max_width=max(12, width // 2))
    table.add_column(no_wrap=True)
    name_room = max(8, width - 30)
    for m in measures:
        table.add_row(
            clip(_plain(m.name), name_room),
            prose(quantity(m.value, m.unit), 200),
            Text(clip(inert(m.source), 12), QUIET),
        )
    return table


def _plain(name: str) -> str:
    """A measure's name without the unit that its value already shows."""
    for suffix in _UNIT_SUFFIXES:
        name = name.removesuffix(suffix)
    return inert(name.replace("_", " "))


def best(diagnosis: Diagnosis) -> Finding | None:
    """The finding to act on first: the top of the ranking that predicts a gain."""
    return next((f for f in ranked(diagnosis) if f.speedup), None)
