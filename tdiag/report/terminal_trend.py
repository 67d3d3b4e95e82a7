"""A history in a terminal: one line per check, with step time and interval on one scale."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from tdiag.report.document import Point, Tone, Trend
from tdiag.report.page import Page
from tdiag.report.text import clip, inert, prose
from tdiag.report.words import BAD, GOOD, HEAD, QUIET, WARN
from tdiag.units import duration

STYLES: dict[Tone, str] = {"good": GOOD, "bad": BAD, "unsure": WARN}
LABEL, DAY, TIME = 11, 10, 9  # widths of the columns before the drawing
SUBJECT = 16  # least width of the commit's subject


def trend(found: Trend, page: Page) -> Iterator[RenderableType]:
    """One line per check; a lasting change is shown above the check that it began with."""
    left = 2 + LABEL + 1 + DAY + 1 + TIME + 2
    width = max(8, min(60, page.width - left - 2 - SUBJECT))
    for index, point in enumerate(found.points):
        if index in found.shifts:
            said, change = found.shifts[index]
            style = f"bold {BAD if change > 0 else GOOD}"
            yield Padding(Text(prose(said), style), (0, 1, 0, 2))
        yield _row(point, found, width, page)
    low, high = duration(found.low), duration(found.high)
    axis = low + " " * max(1, width - len(low) - len(high)) + high
    yield Text(" " * left + axis, QUIET, no_wrap=True)


def _row(point: Point, found: Trend, width: int, page: Page) -> Text:
    line = Text("  ", no_wrap=True, overflow="ellipsis")
    line.append(f"{point.label:<{LABEL}} ", HEAD).append(f"{point.day[:DAY]:<{DAY}} ", QUIET)
    line.append(f"{duration(point.ns):>{TIME}}  ")
    line.append(_drawn(point, found, width), STYLES[point.tone])
    room = page.width - line.cell_len - 2
    return line.append("  " + clip(inert(point.subject), max(1, room)), QUIET)


def _drawn(point: Point, found: Trend, width: int) -> str:
    def at(ns: float) -> int:
        """The cell of a time; a time beyond the scale is at its edge."""
        share = (ns - found.low) / (found.high - found.low)
        return round(min(1.0, max(0.0, share)) * (width - 1))

    cells = [" "] * width
    low, high = at(point.low), at(point.high)
    cells[low : high + 1] = "─" * (high + 1 - low)
    if point.low < found.low:  # mark an interval that goes beyond the scale
        cells[low] = "‹"
    if point.high > found.high:
        cells[high] = "›"
    cells[at(point.ns)] = "●"
    return "".join(cells)
