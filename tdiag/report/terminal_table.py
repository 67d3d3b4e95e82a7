"""A table of the document, fitted to the page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from tdiag.model.place import Place
from tdiag.report.document import Cell, Column, Table
from tdiag.report.page import Page
from tdiag.report.text import (
    clip,
    clip_head,
    clip_middle,
    code,
    inert,
    kernel_name,
    linked,
    prose,
    relative,
    spot,
)
from tdiag.report.words import ACCENT, CODE, QUIET
from tdiag.units import plural

GAP, LEFT, RIGHT = 2, 2, 1  # cells between columns and next to the table
_LEAST_NAME = 12  # with fewer characters a name is useless, so the last number columns are dropped
_NAME_CHARS = 2000  # a trace's names are cut at 1,000; escapes make them longer
_LIBRARY = re.compile(r".*/(?:(?:site|dist)-packages|lib(?:64)?/python3[^/]*)/", re.DOTALL)


def table(found: Table, page: Page) -> Iterator[RenderableType]:
    """Its rows, how many are hidden, and the note; without rows the reason."""
    if found.absent:
        yield Padding(code(prose(found.absent), CODE), (1, 1, 0, 1))
        return
    rows = found.rows if page.all_findings else found.rows[: found.first]
    yield _grid(found.columns, rows, page)
    if hidden := len(found.rows) - len(rows):
        more = plural(hidden, f"more {found.what}")
        yield Padding(Text(f"… {more} with --all", QUIET), (0, 1, 0, LEFT))
    if found.note:
        yield Padding(Text(prose(found.note), QUIET), (1, 1, 0, LEFT))


def _grid(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], page: Page) -> RenderableType:
    kept, widths = _widths(columns, rows, page)
    grid = Grid(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style=QUIET)
    for index in kept:
        number = columns[index].kind == "number"
        title = Text(clip(inert(columns[index].title), widths[index]))
        grid.add_column(title, justify="right" if number else "left", no_wrap=True,
                        width=widths[index])  # fmt: skip
    for row in rows:
        grid.add_row(*(_fitted(row[i], columns[i], widths[i], page) for i in kept))
    return Padding(grid, (0, RIGHT, 0, LEFT))


def _widths(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], page: Page
) -> tuple[list[int], dict[int, int]]:
    """The columns that fit, and their widths. Numbers get the width they need; the last ones are
    dropped if no name would fit. Texts share the rest, places the larger part; width that a short
    text does not need goes to a long one."""
    kept = [i for i, column in enumerate(columns) if page.wide or not column.wide]
    needs = {
        i: max([cell_len(columns[i].title), *(cell_len(_plain(row[i], page)) for row in rows)])
        for i in kept
    }
    texts = [i for i in kept if columns[i].kind != "number"]

    def room() -> int:
        numbers = sum(needs[i] for i in kept if i not in texts)
        return page.width - LEFT - RIGHT - GAP * (len(kept) - 1) - numbers

    least = sum(min(_LEAST_NAME, needs[i]) for i in texts)
    while room() < least and len(kept) > 2 and columns[kept[-1]].kind == "number":
        kept.pop()
    left = room()
    places = {i for i in texts if any(row[i].place for row in rows)}
    order = sorted(texts, key=lambda i: (i not in places, needs[i]))
    for done, index in enumerate(order):
        others = sum(needs[i] for i in order[done + 1 :])
        fair = left * 3 // 5 if index in places else left // (len(order) - done)
        needs[index] = max(1, min(needs[index], max(fair, left - others)))
        left -= needs[index]
    return kept, needs


def _plain(cell: Cell, page: Page) -> str:
    if cell.place:
        return spot(Place(_file(cell.place, page), cell.place.line), None)
    return inert(cell.text, _NAME_CHARS)


def _file(place: Place, page: Page) -> str:
    """Relative to the base; a library's file from its package on: ``torch/optim/adam.py``."""
    library = _LIBRARY.match(place.file)
    return place.file[library.end() :] if library else relative(place.file, page.base_dir)


def _fitted(cell: Cell, column: Column, width: int, page: Page) -> Text:
    if cell.place:
        return linked(_file(cell.place, page), cell.place, width, ACCENT)
    text = inert(cell.text, _NAME_CHARS)
    if column.kind == "kernel":
        return Text(clip_middle(kernel_name(text, width), width))
    return Text((clip_head if column.kind == "start" else clip)(text, width))
