"""A chart of the page, and the table that says the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tdiag.report.document import Cell, Column, Table


@dataclass(frozen=True)
class Chart:
    """``figure``: data and layout for Plotly, its texts already inert (:func:`label`).
    ``summary``: what a reader would see in it, for one who cannot. ``height``: in pixels.
    ``searchable``: a call tree, zoomed and searched."""

    id: str
    title: str
    figure: dict[str, Any]
    summary: str
    height: int
    note: str = ""
    table: Table | None = None
    searchable: bool = False


def sheet(id: str, title: str, columns: Mapping[str, str], rows: Sequence[Sequence[Cell]]) -> Table:
    """A chart's numbers. ``columns``: title → what it means; numbers where a cell has a value."""
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
