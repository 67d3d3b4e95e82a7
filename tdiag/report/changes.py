"""Two traces side by side, as `tdiag analyze --against` shows them below the report."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from tdiag.model.comparison import Change, ChangeTable, Comparison
from tdiag.report import json
from tdiag.report.page import Page, heading
from tdiag.report.text import clip_middle, inert, kernel_name, prose
from tdiag.report.words import HEAD, QUIET, component, verdict_class
from tdiag.units import MANIFOLD_FRAC, change, count, duration, plural, scale_for, size

_ROWS = 8  # of a table, unless all are asked for
_LEAST_NAME = 12  # cells; below that a name tells nothing and the numbers give way
_NAME_CHARS = 2000  # a trace's names are cut at 1,000; escapes make them longer


def render(comparison: Comparison, page: Page) -> str:
    """Each table, largest change first, as text of at most ``page.width`` cells a line."""
    return page.draw(*_parts(comparison, page))


def as_json(comparison: Comparison) -> str:
    """All of it for programs (``comparison.schema.json``)."""
    return json.encode(comparison)


def _parts(comparison: Comparison, page: Page) -> Iterator[RenderableType]:
    yield from heading("What changed", "per step, largest change first", page)
    classes = comparison.verdict_before, comparison.verdict_after
    before, after = (inert(verdict_class(name)) for name in classes)
    yield indented(Text(prose(f"verdict before: {before}, now: {after}")))
    step = comparison.step
    if step:
        times = f"{duration(step.before)}, now: {duration(step.after)} ({_relative(step)})"
        yield indented(Text(prose(f"step before: {times}")))
    closing: dict[str, list[str]] = {}
    for table in comparison.tables:
        if table.rows:
            yield Text()
            yield from table_lines(table, max(step.before, step.after) if step else 0.0, page)
        else:
            said = f"Not compared ({table.why})" if table.why else "No noticeable difference"
            closing.setdefault(said, []).append(table.title.lower())
    if closing:
        yield Text()
    for said, titles in closing.items():
        yield indented(Text(prose(f"{said}: {', '.join(titles)}")))
    for text in comparison.notes_before:  # the report above has those of the trace now
        yield indented(Text(prose(f"trace before: {text}"), QUIET))


def indented(text: Text) -> RenderableType:
    """Two cells in, like a table's title."""
    return Padding(text, (0, 1, 0, 2))


def table_lines(table: ChangeTable, longest_ns: float, page: Page) -> Iterator[RenderableType]:
    """The lines of one. ``longest_ns``: the longer step, by which one unit is chosen for times."""
    shown = table.rows if page.all_findings else table.rows[:_ROWS]
    unit, decimals, ns_per_digit = scale_for(longest_ns)
    title = f"{table.title}, {unit}" if shown[0].unit == "ns" else table.title
    rows = [
        (title, "before", "now", "change", ""),
        *(_cells(row, ns_per_digit, decimals, table.title == "Budget") for row in shown),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(1, 5)]
    room = max(_LEAST_NAME, page.width - 3 - sum(width + 2 for width in widths))
    for row in rows:
        yield _line(row, widths, room, HEAD if row is rows[0] else "")
    if hidden := len(table.rows) - len(shown):
        yield indented(Text(f"… {plural(hidden, 'more change')} with --all", QUIET))


def _line(row: tuple[str, ...], widths: list[int], room: int, style: str) -> Text:
    line = Text("  ", style, no_wrap=True, overflow="ellipsis")
    name = Text(clip_middle(kernel_name(row[0], room), room))
    name.pad_right(room - name.cell_len)
    line.append_text(name)
    for cell, width in zip(row[1:], widths, strict=True):
        line.append("  " + cell.rjust(width))
    return line


def _cells(row: Change, ns_per_digit: int, decimals: int, words: bool) -> tuple[str, ...]:
    """``words``: whether the row is named by a budget component."""

    def shown(value: float, at_most: bool = False) -> str:
        if row.unit == "ns":
            digits = math.ceil(value / ns_per_digit) if at_most else value / ns_per_digit
            return f"{'≤' if at_most else ''}{digits / 10**decimals:,.{decimals}f}"
        return size(value) if row.unit == "bytes" else count(value)

    values = shown(row.before, row.at_most == "before"), shown(row.after, row.at_most == "after")
    sign = "-" if row.difference < 0 else "+"
    name = component(row.name).label if words else row.name
    return (inert(name, _NAME_CHARS), *values, sign + shown(abs(row.difference)), _relative(row))


def _relative(row: Change) -> str:
    """The change as a share of what was before, a factor where that reads better."""
    if row.at_most:
        return "at least"
    if not row.before:
        return "new" if row.after else ""
    if not row.after:
        return "gone"
    frac = row.difference / row.before
    return f"{1 + frac:,.0f}×" if frac > MANIFOLD_FRAC else change(frac)
