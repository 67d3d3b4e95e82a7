"""The history in a terminal: a check a line, its step time and interval drawn on one scale."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from tdiag.gate.history import Record, Series
from tdiag.gate.report.history.words import NOTHING, bounds, shift_line, summary
from tdiag.gate.shifts import Shift, shifts
from tdiag.report.changes import indented
from tdiag.report.page import Page, heading
from tdiag.report.text import clip, inert, prose
from tdiag.report.words import BAD, GOOD, HEAD, QUIET, WARN
from tdiag.units import duration

STYLES = {"pass": GOOD, "regressed": BAD, "inconclusive": WARN}
LABEL, DAY, TIME = 11, 10, 9  # cells of the columns before the drawing
SUBJECT = 16  # cells of the commit's subject, at least


def render(found: Sequence[Series], page: Page) -> str:
    """Text of at most ``page.width`` cells a line."""
    if not found:
        return NOTHING + "\n"
    return page.draw(*(part for one in found for part in _parts(one, page)))


def _parts(series: Series, page: Page) -> Iterator[RenderableType]:
    times = [record.step_ns or 0.0 for record in series.records]
    changes = {shift.index: shift for shift in shifts(times)}
    scale = _Scale(series, page)
    yield from heading(inert(series.command), inert(series.machine), page)
    yield indented(Text(prose(series.how), QUIET))
    yield indented(Text(prose(summary(series, len(changes)))))
    yield Text()
    for index, record in enumerate(series.records):
        if shift := changes.get(index):
            yield _shift(shift, series, page)
        yield _row(record, scale, page)
    yield Text(" " * scale.left + scale.axis(), QUIET, no_wrap=True)


def _shift(shift: Shift, series: Series, page: Page) -> RenderableType:
    style = BAD if shift.change > 0 else GOOD
    return indented(Text(prose(shift_line(shift, series)), f"bold {style}"))


def _row(record: Record, scale: _Scale, page: Page) -> Text:
    day = time.strftime("%Y-%m-%d", time.gmtime(record.unix))
    line = Text("  ", no_wrap=True, overflow="ellipsis")
    line.append(f"{record.label:<{LABEL}} ", HEAD).append(f"{day:<{DAY}} ", QUIET)
    line.append(f"{duration(record.step_ns or 0.0):>{TIME}}  ")
    line.append(scale.drawn(record), STYLES[record.verdict])
    room = page.width - line.cell_len - 2
    return line.append("  " + clip(inert(record.subject), max(1, room)), QUIET)


class _Scale:
    """One for all checks of a series, so that they compare by eye."""

    def __init__(self, series: Series, page: Page) -> None:
        self.low, self.high = bounds(series)
        self.left = 2 + LABEL + 1 + DAY + 1 + TIME + 2
        rest = page.width - self.left - 2
        self.width = max(8, min(60, rest - SUBJECT))

    def at(self, ns: float) -> int:
        """The cell of a time; what lies beyond is at the edge."""
        share = (ns - self.low) / (self.high - self.low)
        return round(min(1.0, max(0.0, share)) * (self.width - 1))

    def drawn(self, record: Record) -> str:
        cells = [" "] * self.width
        step = record.step_ns or 0.0
        least, most = record.low_ns or step, record.high_ns or step
        low, high = self.at(least), self.at(most)
        cells[low : high + 1] = "─" * (high + 1 - low)
        if least < self.low:  # an interval that the scale cuts off says so
            cells[low] = "‹"
        if most > self.high:
            cells[high] = "›"
        cells[self.at(step)] = "●"
        return "".join(cells)

    def axis(self) -> str:
        """Its ends, in words."""
        low, high = duration(self.low), duration(self.high)
        return low + " " * max(1, self.width - len(low) - len(high)) + high
