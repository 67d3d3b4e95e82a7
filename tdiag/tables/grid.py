"""What the tables are drawn with: rows fitted to the page, notes, and a word for what is not there.

Whatever others named goes through :mod:`tdiag.report.text`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

from rich.cells import cell_len
from rich.console import JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tdiag.evidence.store import Evidence
from tdiag.model.kind import Kind
from tdiag.model.place import Place
from tdiag.report.page import Page
from tdiag.report.text import clip, clip_head, code, inert, linked, prose, relative, spot
from tdiag.report.words import ACCENT, CODE, QUIET
from tdiag.units import disturbance, plural

FIRST = 25  # rows shown unless all are asked for
GAP, LEFT, RIGHT = 2, 2, 1  # cells between columns and beside the table


class Name(str):
    """A text that is cut at its end where it is too long, since its beginning says most."""


Cell: TypeAlias = str | Place
R = TypeVar("R")

_LIBRARY = re.compile(r".*/(?:(?:site|dist)-packages|lib(?:64)?/python3[^/]*)/", re.DOTALL)


def first(rows: Sequence[R], page: Page) -> Sequence[R]:
    return rows if page.all_findings else rows[:FIRST]


def more(hidden: int, what: str) -> Iterator[RenderableType]:
    """That so many rows are not shown."""
    if hidden > 0:
        yield Padding(Text(f"… {plural(hidden, f'more {what}')} with --all", QUIET), (0, 1, 0, 2))


def empty_table() -> Table:
    return Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style=QUIET)


def grid(
    header: Sequence[str], texts: int, rows: Sequence[Sequence[Cell]], page: Page
) -> RenderableType:
    """The first ``texts`` columns hold names and places, cut where the page is narrow (at their
    start, but a :class:`Name`); the others hold numbers, which are never cut."""
    table = empty_table()
    widths = _widths(header, texts, rows, page)
    for index, title in enumerate(header):
        justify: JustifyMethod = "left" if index < texts else "right"
        table.add_column(title, justify=justify, no_wrap=True, width=widths[index])
    for row in rows:
        table.add_row(
            *(_fitted(cell, width, page) for cell, width in zip(row, widths, strict=True))
        )
    return Padding(table, (0, RIGHT, 0, LEFT))


def _widths(
    header: Sequence[str], texts: int, rows: Sequence[Sequence[Cell]], page: Page
) -> list[int]:
    """Numbers get what they need. Texts share the rest, places the larger part of it; what a short
    one leaves a long one gets."""
    needs = [
        max([cell_len(title), *(cell_len(_plain(row[index], page)) for row in rows)])
        for index, title in enumerate(header)
    ]
    room = page.width - LEFT - RIGHT - GAP * (len(header) - 1) - sum(needs[texts:])
    places = {i for i in range(texts) if any(isinstance(row[i], Place) for row in rows)}
    order = sorted(range(texts), key=lambda i: (i not in places, needs[i]))
    for done, index in enumerate(order):
        others = sum(needs[i] for i in order[done + 1 :])
        fair = room * 3 // 5 if index in places else room // (texts - done)
        needs[index] = max(1, min(needs[index], max(fair, room - others)))
        room -= needs[index]
    return needs


def _plain(cell: Cell, page: Page) -> str:
    if isinstance(cell, Place):
        return spot(Place(_file(cell, page), cell.line), None)
    return inert(cell)


def _file(place: Place, page: Page) -> str:
    """Relative to the base; a library's from its package on: ``torch/optim/adam.py``."""
    library = _LIBRARY.match(place.file)
    return place.file[library.end() :] if library else relative(place.file, page.base_dir)


def _fitted(cell: Cell, width: int, page: Page) -> Text:
    if isinstance(cell, Place):
        return linked(_file(cell, page), cell, width, ACCENT)
    cut = clip if isinstance(cell, Name) else clip_head
    return Text(cut(inert(cell), width))


def note(*sentences: str) -> RenderableType:
    """Below a table: what its numbers are parts of, and how far to trust them."""
    return Padding(Text(prose(" ".join(filter(None, sentences))), QUIET), (1, 1, 0, 2))


def absent(what: str, kind: type[Kind], evidence: Evidence, how: str) -> Iterator[RenderableType]:
    """Why there is no such table, and how to get one. ``how`` may hold code between backticks."""
    why = prose(evidence.why_missing(kind), 300)
    yield Padding(Text.assemble(f"No {what}: {why}. ", code(how, CODE)), (1, 1, 0, 1))


def cost(window: str, evidence: Evidence) -> str:
    """``cost to the steps it watched: +38%``, of the profiler of this window."""
    frac = evidence.perturbation.get(window)
    return f"cost to the steps it watched: {'unknown' if frac is None else disturbance(frac)}"
