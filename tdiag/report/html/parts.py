"""A chart of the page, the table with the same numbers, and their texts and colours."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tdiag.report.document import Cell, Column, Table
from tdiag.report.text import inert

_PALETTE = re.compile(r"color\((\d+)\)")
_CUBE = (0, 95, 135, 175, 215, 255)


@dataclass(frozen=True)
class Chart:
    """``figure``: data and layout for Plotly, with texts already escaped (:func:`label`).
    ``summary``: a description for readers who cannot see the chart. ``height``: in pixels.
    ``searchable``: a call tree that can be zoomed and searched."""

    id: str
    title: str
    figure: dict[str, Any]
    summary: str
    height: int
    note: str = ""
    table: Table | None = None
    searchable: bool = False


def sheet(id: str, title: str, columns: Mapping[str, str], rows: Sequence[Sequence[Cell]]) -> Table:
    """A chart's numbers as a table. ``columns``: title → meaning; a cell with a value is a
    number."""
    kinds = [any(row[i].value is not None for row in rows) for i in range(len(columns))]
    return Table(
        id=id,
        title=title,
        columns=tuple(
            Column(name, "number" if number else "end", hint)
            for (name, hint), number in zip(columns.items(), kinds, strict=True)
        ),
        rows=tuple(tuple(row) for row in rows),
    )


def label(text: object, limit: int = 160) -> str:
    """Escaped text for a chart, because Plotly reads a subset of HTML in its texts."""
    return html.escape(inert(text, limit), quote=False)


def rgb(color: str) -> str:
    """``color(166)`` of the 256-colour palette (xterm's) as ``#d75f00``."""
    found = _PALETTE.search(color)
    number = int(found[1]) if found else 244
    if number >= 232:
        parts = (8 + 10 * (number - 232),) * 3
    else:
        red, rest = divmod(number - 16, 36)
        parts = (_CUBE[red], _CUBE[rest // 6], _CUBE[rest % 6])
    return "#" + "".join(f"{part:02x}" for part in parts)
