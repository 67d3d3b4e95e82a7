"""The ranked findings, and the advisories apart from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tdiag.model.diagnosis import Diagnosis, Finding, Measure
from tdiag.report.page import Page
from tdiag.report.summary import advisories, measure_name, measure_value, ranked, together, why
from tdiag.report.text import clip, code, inert, location, prose
from tdiag.report.words import ACCENT, CODE, GOOD, HEAD, QUIET, SAFETY
from tdiag.units import faster, plural, quantity

FIRST = 5  # findings shown in full unless all are asked for; nobody acts on more at a time
FIRST_MEASURES = 8
FIRST_ADVISORIES = 3
_NAME_CELLS = 60
_WORD_CELLS = 12  # a longer text gets a line of its own, or it would push the numbers apart
_INDENT = 4


def findings(diagnosis: Diagnosis, page: Page) -> Iterable[RenderableType]:
    """Each ranked finding in full."""
    every = ranked(diagnosis)
    shown = every if page.all_findings else every[:FIRST]
    for number, finding in enumerate(shown, 1):
        if number > 1:
            yield Text()
        yield _finding(number, finding, diagnosis, page)
    for line in _rest(len(every) - len(shown), "finding"):
        yield Group(Text(), Padding(line, (0, 0, 0, _INDENT)))
    if all_of_them := together(diagnosis):
        said = f"All {len(every)} together {faster(all_of_them, all_of_them)} faster"
        line = Text(f"{said}: overlapping savings are counted once.", QUIET)
        yield Group(Text(), Padding(line, (0, 1, 0, _INDENT)))


def advice(diagnosis: Diagnosis, page: Page) -> Iterable[RenderableType]:
    """One short entry an advisory."""
    every = advisories(diagnosis)
    shown = every if page.all_findings else every[:FIRST_ADVISORIES]
    yield from (_brief(f, page) for f in shown)
    for line in _rest(len(every) - len(shown), "advisory", "advisories"):
        yield Padding(line, (0, 0, 0, _INDENT))


def _rest(hidden: int, one: str, many: str = "") -> Iterable[Text]:
    if hidden:
        yield Text(f"… {plural(hidden, f'more {one}', many and f'more {many}')} with --all", QUIET)


def _brief(finding: Finding, page: Page) -> RenderableType:
    text = Text.assemble((inert(finding.code, 12), QUIET), " ", code(finding.summary, CODE))
    if finding.location:
        text.append(" ")
        text.append_text(location(finding.location, page.base_dir, page.width // 2, ACCENT))
    text.append_text(Text.assemble(" → ", code(finding.fix.text, CODE)))
    return Padding(text, (0, 1, 0, _INDENT))


def _finding(number: int, finding: Finding, diagnosis: Diagnosis, page: Page) -> RenderableType:
    room = (page.width - 10) // 2 if page.wide else page.width - _INDENT - 2
    place = finding.location
    where = location(place, page.base_dir, room, ACCENT) if place else Text("whole run", QUIET)
    summary = code(finding.summary, CODE)
    measures = finding.evidence if page.all_findings else finding.evidence[:FIRST_MEASURES]
    facts = Group(*_evidence(measures), *_rest(len(finding.evidence) - len(measures), "number"))
    change = Group(_change(finding), code(why(finding, diagnosis), CODE, QUIET))
    title = _title(number, finding, page)
    if not page.wide:
        body = Group(where, summary, Padding(facts, (0, 0, 0, 2)), change)
        return Group(title, Padding(body, (0, 1, 0, _INDENT)))
    columns = Table.grid(padding=(0, 4, 0, 0))
    columns.add_column(width=room, overflow="fold")
    columns.add_column(overflow="fold")
    columns.add_row(Group(where, summary, change), facts)
    return Group(title, Padding(columns, (0, 1, 0, _INDENT)))


def _title(number: int, finding: Finding, page: Page) -> Text:
    gain = f"{faster(finding.speedup.low, finding.speedup.high)} faster" if finding.speedup else ""
    lead = Text.assemble((f"{number:>2}  ", HEAD), (inert(finding.code, 12), QUIET), " ")
    lead.append(clip(inert(finding.name), page.width - lead.cell_len - len(gain) - 3), HEAD)
    lead.append(" " * (page.width - lead.cell_len - len(gain) - 1))
    lead.append(gain, f"bold {GOOD}")
    lead.no_wrap = True
    return lead


def _change(finding: Finding) -> RenderableType:
    """The change to make, a line for each line of the fix, and how safe it is."""
    lines = [line for line in finding.fix.text.rstrip(".").splitlines() if line.strip()]
    text = Text("\n").join([code(line, CODE) for line in lines])
    text.append(f" ({SAFETY[finding.fix.safety]})", QUIET)
    grid = Table.grid()
    grid.add_column()
    grid.add_column(overflow="fold")
    grid.add_row(Text("→ ", CODE), text)
    return grid


def _evidence(measures: Sequence[Measure]) -> Iterable[RenderableType]:
    """Numbers aligned at their unit and words with them, then longer texts, each with which
    profiler said so."""
    units = [quantity(m.value, m.unit)[1] for m in measures if not isinstance(m.value, str)]
    unit_cells = max(map(len, units), default=0)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style=QUIET, no_wrap=True)
    texts = []
    for m in measures:
        if not isinstance(m.value, str):
            number, unit = quantity(m.value, m.unit)
            table.add_row(_name(m), f"{number} {unit:<{unit_cells}}", _source(m))
        elif cell_len(inert(m.value)) <= _WORD_CELLS:
            table.add_row(_name(m), measure_value(m), _source(m))
        else:
            texts.append(m)
    if table.row_count:
        yield table
    for m in texts:
        yield Text.assemble(_name(m), "  ", prose(m.value, 200), "  ", (_source(m), QUIET))


def _name(measure: Measure) -> str:
    return clip(measure_name(measure), _NAME_CELLS)


def _source(measure: Measure) -> str:
    return clip(inert(measure.source), 12)
