"""A document in a terminal: the headline, then its sections, one block below the other."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.table import Table as Grid
from rich.text import Text

from tdiag.evidence.machine import SystemHistory
from tdiag.model.diagnosis import Measure
from tdiag.model.timeline import Timeline
from tdiag.report.document import (
    Block,
    Code,
    Document,
    Facts,
    Headline,
    Item,
    Line,
    Parts,
    Section,
    Table,
    Tone,
    Trend,
)
from tdiag.report.page import Page
from tdiag.report.summary import measure_name, measure_value
from tdiag.report.terminal_budget import budget
from tdiag.report.terminal_strips import strips
from tdiag.report.terminal_table import table
from tdiag.report.terminal_timeline import timeline
from tdiag.report.terminal_trend import trend
from tdiag.report.text import GLUE, clip, clip_head, code, inert, location, prose, relative
from tdiag.report.words import ACCENT, BAD, CODE, GOOD, HEAD, QUIET, WARN
from tdiag.units import plural, quantity

FIRST_MEASURES = 8
STYLES: dict[Tone, str] = {
    "": "", "good": f"bold {GOOD}", "bad": f"bold {BAD}", "unsure": f"bold {WARN}",
    "quiet": QUIET, "accent": ACCENT,
}  # fmt: skip
_ACTION_CELLS = 110
_NAME_CELLS = 60
_WORD_CELLS = 12  # a longer text gets its own line; otherwise it would push the numbers apart
_LABEL_CELLS = 9
_INDENT = 4


def render(document: Document, page: Page) -> str:
    """The whole report as text, each line at most ``page.width`` characters."""
    return page.draw(*_parts(document, page), Text())


def _parts(document: Document, page: Page) -> Iterator[RenderableType]:
    if (head := document.headline) and head.lines:
        yield Text()
        yield _Barred(_headline(head, page), STYLES[head.tone] or ACCENT)
    for section in document.sections:
        if not section.page_only and (section.first != 0 or page.all_findings):
            yield from _section(section, page)
    if rows := list(_closing(document, page)):
        if all(section.id != "measured" for section in document.sections):
            yield Text()
        yield _facts(rows)


class _Barred:
    """Its content, with a coloured bar along the left side."""

    def __init__(self, body: RenderableType, color: str) -> None:
        self.body = body
        self.color = Style.parse(color.removeprefix("bold "))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        inner = options.update_width(options.max_width - 4)
        for line in console.render_lines(self.body, inner, pad=False):
            yield Segment(" ▌ ", self.color)
            yield from line
            yield Segment.line()


def _headline(found: Headline, page: Page) -> RenderableType:
    head = Text.assemble((f"{found.sign} {inert(found.title)}".strip(), STYLES[found.tone]))
    if found.share:
        head.append(f": {inert(found.share)}", HEAD)
    aside = inert(found.aside)
    gap = page.width - 4 - head.cell_len - cell_len(aside)
    head.append(" " * gap if gap > 0 else "\n")
    head.append(aside, QUIET)
    return Group(head, *(_sentence(line, page) for line in found.lines))


def _sentence(line: Line, page: Page) -> Text:
    text = Text()
    if line.label:
        text.append(f"{prose(line.label)}: ", HEAD)
    said = clip(inert(line.text), _ACTION_CELLS) if line.gain else line.text
    text.append_text(code(said, CODE, STYLES[line.tone]))
    if line.at:
        text.append(" at ")
        text.append_text(location(line.at, page.base_dir, page.width - 20, ACCENT))
    if line.gain:
        text.append(", ").append(inert(line.gain).replace(" ", GLUE), STYLES["good"])
    return text


def _section(section: Section, page: Page) -> Iterator[RenderableType]:
    if section.title:
        yield from heading(section.title, section.aside, page)
    shown, hidden = _first(section, page)
    tables = [block for block in shown if isinstance(block, Table)]
    if page.wide and section.beside and len(tables) > 1:
        yield from _beside(tables, page)
        return
    last: Block | None = None
    for block in shown:
        if last is not None and not _belongs(last, block):
            yield Text()
        yield _block(block, section, page)
        last = block
    if hidden:
        if not (isinstance(last, Item) and last.number is None):
            yield from [] if isinstance(last, Line) else [Text()]
        more = plural(hidden, f"more {section.what[0]}", f"more {section.what[1]}")
        indent = _INDENT if any(isinstance(x, Item) for x in shown) else 2
        yield Padding(Text(f"… {more} with --all", QUIET), (0, 0, 0, indent))


def _first(section: Section, page: Page) -> tuple[list[Block], int]:
    """The blocks to show, and how many items are hidden. Closing lines of the section stay."""
    if page.all_findings:
        return list(section.blocks), 0
    if section.first is None:
        return [x for x in section.blocks if not (isinstance(x, Table) and x.minor)], 0
    items = [x for x in section.blocks if isinstance(x, Item)]
    counted: list[Block] = [*items] or list(section.blocks)
    dropped = {id(block) for block in counted[section.first :]}
    return [x for x in section.blocks if id(x) not in dropped], len(dropped)


def _belongs(last: Block, block: Block) -> bool:
    """Whether a block comes directly below the last one."""
    brief = all(isinstance(x, Item) and x.number is None for x in (last, block))
    pasted = isinstance(last, Item) and bool(last.code)
    return (brief and not pasted) or (isinstance(last, Line) and isinstance(block, Line | Table))


def _beside(tables: Sequence[Table], page: Page) -> Iterator[RenderableType]:
    """Two tables side by side."""
    room = (page.width - 2) // 2
    half = replace(page, width=room)
    for at in range(0, len(tables), 2):
        if at:
            yield Text()
        drawn = [Group(*table(found, half)) for found in tables[at : at + 2]]
        yield Columns(drawn, padding=0, width=room)


def _block(block: Block, section: Section, page: Page) -> RenderableType:
    if isinstance(block, Line):
        text = _sentence(replace(block, label=""), page)
        if block.label:
            text.append("  ").append(prose(block.label), QUIET)  # may list all rules
        return Padding(text, (0, 1, 0, 4 if section.id == "findings" else 2))
    if isinstance(block, Item):
        return _item(block, page) if block.number else _brief(block, page)
    if isinstance(block, Facts):
        return _facts([row for row in block.rows if page.all_findings or not row.minor])
    if isinstance(block, Code):
        return _lines(block)
    for kind, draw in _DRAWN.items():
        if isinstance(block, kind):
            return Group(*draw(block, page))
    raise TypeError(type(block))


# Blocks drawn by their own files.
_DRAWN: dict[type, Callable[[Any, Page], Iterable[RenderableType]]] = {
    Table: table,
    Parts: budget,
    Timeline: timeline,
    SystemHistory: strips,
    Trend: trend,
}


def heading(title: str, right: str, page: Page) -> Iterator[RenderableType]:
    """An empty line, then a ruled one with ``title`` and ``right``; this one below if too long."""
    title, right = clip(inert(title), page.width - 6), inert(right)
    room = page.width - cell_len(title) - 3
    beside = right and cell_len(right) < room - 2
    line = "─" * max(2, room - cell_len(right) - 1 if beside else room)
    yield Text()
    yield Text.assemble(" ", (title, HEAD), " ", (line, QUIET), f" {right}" if beside else "")
    if right and not beside:
        yield Padding(Text(right), (0, 1, 0, 2))


def _facts(rows: Sequence[Line]) -> RenderableType:
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=_LABEL_CELLS)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(Text(inert(row.label), QUIET), code(row.text, CODE, STYLES[row.tone]))
    return Padding(grid, (0, 1, 0, 2))


def _lines(block: Code) -> RenderableType:
    """Colour a diff's removed and added lines."""
    styles = {"+": GOOD, "-": BAD, "@": QUIET} if block.language == "diff" else {}
    shown = [inert(line.rstrip("\r").expandtabs(4), 1200) for line in block.text.split("\n")]
    text = Text("\n", overflow="fold").join(Text(x, styles.get(x[:1], "")) for x in shown)
    text.rstrip()
    return Padding(text, (0, 1, 0, 2))


def _closing(document: Document, page: Page) -> Iterator[Line]:
    yield from (Line(note.text, "note") for note in document.notes)
    if page.run_dir:
        run = relative(str(page.run_dir), page.base_dir)
        yield Line(clip_head(inert(run), page.width - 16), "saved in", "accent")
        name = "" if page.latest else shlex.quote(run)
        again = " ".join(filter(None, ("tdiag report", inert(name), "--all")))
        yield Line(f"`{again}`" if "`" not in again else again, "again")


def _item(item: Item, page: Page) -> RenderableType:
    """The change and its gain; the rule and the place; then the evidence."""
    room = (page.width - 10) // 2 if page.wide else page.width - _INDENT - 2
    measures = item.evidence if page.all_findings else item.evidence[:FIRST_MEASURES]
    facts = [*_evidence(measures)]
    if hidden := len(item.evidence) - len(measures):
        facts.append(Text(f"… {plural(hidden, 'more number')} with --all", QUIET))
    what = [_identity(item, page, room), code(item.summary, CODE)]
    if not item.change and cell_len(inert(item.action, 1200)) > _room(item, page):
        item = replace(item, change=item.action)  # the title is too long for its line
    change, why = _change(item), [code(item.why, CODE, QUIET)] if item.why else []
    if not page.wide:
        parts = (
            *what,
            Padding(Group(*facts), (0, 0, 0, 2)),
            *change,
            *_pasted(item, len(why)),
            *why,
        )
        return Group(_title(item, page), Padding(Group(*parts), (0, 1, 0, _INDENT)))
    columns = Grid.grid(padding=(0, 4, 0, 0))
    columns.add_column(width=room, overflow="fold")
    columns.add_column(overflow="fold")
    columns.add_row(Group(*what, *change, *why), Group(*facts))
    body = Group(columns, *_pasted(item))  # below both columns: a line of code must not be wrapped
    return Group(_title(item, page), Padding(body, (0, 1, 0, _INDENT)))


def _room(item: Item, page: Page) -> int:
    """Characters for the action between the rank and the gain."""
    return page.width - _INDENT - len(item.gain) - 3


def _title(item: Item, page: Page) -> Text:
    lead = Text(f"{item.number:>2}  ", HEAD)
    lead.append_text(code(clip(inert(item.action, 1200), _room(item, page)), CODE, HEAD))
    lead.append(" " * max(2, page.width - lead.cell_len - len(item.gain) - 1))
    lead.append(item.gain, STYLES["good"])
    lead.no_wrap = True
    return lead


def _identity(item: Item, page: Page, room: int) -> Text:
    """``TD201 name at train.py:41, keeps results``."""
    text = Text.assemble((f"{inert(item.rule, 12)} {clip(inert(item.name), room)}", QUIET))
    text.append(" at " if item.place else ", whole run", QUIET)
    if item.place:
        text.append_text(location(item.place, page.base_dir, room - 4, ACCENT))
    return text.append(f" ({item.safety})", QUIET)


def _change(item: Item) -> Iterator[RenderableType]:
    """The change in full sentences, one line for each of its lines."""
    if lines := [line for line in item.change.splitlines() if line.strip()]:
        grid = Grid.grid()
        grid.add_column()
        grid.add_column(overflow="fold")
        grid.add_row(Text("→ ", CODE), Text("\n").join([code(line, CODE) for line in lines]))
        yield grid


def _pasted(item: Item, below: int = 0) -> Iterator[RenderableType]:
    """The lines to paste; ``below``: empty lines after them."""
    if item.code:
        pasted = [inert(line.expandtabs(4)) for line in item.code.splitlines()]
        yield Padding(Text("\n".join(pasted), CODE, overflow="fold"), (1, 0, below, 2))


def _brief(item: Item, page: Page) -> RenderableType:
    """An advisory: the change, the rule and the place, then the evidence."""
    text = code(item.action, CODE, HEAD)
    text.append(f" {inert(item.rule, 12)}", QUIET)
    if place := Line(item.summary, place=item.place).at:
        text.append(" at ", QUIET)
        text.append_text(location(place, page.base_dir, page.width // 2, ACCENT))
    text.append(": ").append_text(code(item.summary, CODE))
    if item.change:
        text.append(" → ", CODE).append_text(code(item.change, CODE))
    return Padding(Group(text, *_pasted(item)), (0, 1, 0, _INDENT))


def _evidence(measures: Sequence[Measure]) -> Iterable[RenderableType]:
    """First numbers aligned at their units and short words with them, then longer texts; each with
    the profiler that measured it."""
    units = [quantity(m.value, m.unit)[1] for m in measures if not isinstance(m.value, str)]
    unit_cells = max(map(len, units), default=0)
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(overflow="fold")
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(style=QUIET, no_wrap=True)
    texts = []
    for m in measures:
        name, source = clip(measure_name(m), _NAME_CELLS), clip(inert(m.source), 12)
        if not isinstance(m.value, str):
            number, unit = quantity(m.value, m.unit)
            grid.add_row(name, f"{number} {unit:<{unit_cells}}", source)
        elif cell_len(inert(m.value)) <= _WORD_CELLS:
            grid.add_row(name, measure_value(m), source)
        else:
            texts.append(Text.assemble(name, "  ", prose(m.value, 200), "  ", (source, QUIET)))
    if grid.row_count:
        yield grid
    yield from texts
