"""What the page is made of besides the diagnosis: charts, and tables of anything countable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

NOTHING = "–"


class Cell(NamedTuple):
    """``text`` is shown; ``value`` (a number, or None for a text) is what it is sorted by."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Table:
    """``columns``: title → what it means; a column of numbers is one whose cells have values.
    ``note``: what its numbers are parts of. Without rows, ``why`` there are none."""

    id: str
    title: str
    columns: dict[str, str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    why: str = ""

    def is_number(self, index: int) -> bool:
        return any(row[index].value is not None for row in self.rows)


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
