"""The document of two traces side by side (`tdiag analyze --against`)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tdiag.model.comparison import ChangeTable, Comparison, Difference
from tdiag.model.notes import Note
from tdiag.report.document import Block, Cell, Column, Document, Headline, Line, Section, Table
from tdiag.report.words import component, verdict_class
from tdiag.units import MANIFOLD_FRAC, change, count, duration, scale_for, size

FIRST = 8  # rows of a table without --all


def document(comparison: Comparison) -> Document:
    """Each table with the largest change first. The notes are those of the earlier trace."""
    before, now = map(verdict_class, (comparison.verdict_before, comparison.verdict_after))
    lines = [Line(f"verdict before: {before}, now: {now}")]
    if step := comparison.step:
        times = f"{duration(step.before)}, now: {duration(step.after)} ({relative(step)})"
        lines.append(Line(f"step before: {times}"))
    return Document(
        name="tdiag analyze",
        title="Two traces",
        data=comparison,
        headline=Headline(title="What changed", brief="; ".join(line.text for line in lines)),
        sections=(
            Section(
                id="changes",
                title="What changed",
                aside="per step, largest change first",
                blocks=(*lines, *_blocks(comparison)),
            ),
        ),
        notes=tuple(Note("before", f"trace before: {text}") for text in comparison.notes_before),
    )


def _blocks(comparison: Comparison) -> Iterator[Block]:
    step = comparison.step
    longest = max(step.before, step.after) if step else 0.0
    closing: dict[str, list[str]] = {}
    for table in comparison.tables:
        if table.rows:
            yield change_table(table, longest)
        else:
            said = f"Not compared ({table.why})" if table.why else "No noticeable difference"
            closing.setdefault(said, []).append(table.title.lower())
    yield from (Line(f"{said}: {', '.join(titles)}") for said, titles in closing.items())


def change_table(table: ChangeTable, longest_ns: float) -> Table:
    """``longest_ns``: the longer step, which determines the unit of times. In a budget's table the
    rows are components."""
    unit, decimals, ns_per_digit = scale_for(longest_ns)
    timed = table.rows[0].unit == "ns"
    titles = (f"{table.title}, {unit}" if timed else table.title, "before", "now", "change", "")
    named = table.title == "Budget"
    return Table(
        title="",
        columns=tuple(Column(title, "number" if i else "kernel") for i, title in enumerate(titles)),
        rows=tuple(_row(row, ns_per_digit, decimals, named) for row in table.rows),
        first=FIRST,
        what="change",
    )


def _row(row: Difference, ns_per_digit: int, decimals: int, named: bool) -> tuple[Cell, ...]:
    def shown(value: float, at_most: bool = False) -> Cell:
        if row.unit != "ns":
            return Cell(size(value) if row.unit == "bytes" else count(value), value)
        digits = math.ceil(value / ns_per_digit) if at_most else value / ns_per_digit
        return Cell(f"{'≤' if at_most else ''}{digits / 10**decimals:,.{decimals}f}", value)

    sign = "-" if row.difference < 0 else "+"
    return (
        Cell(component(row.name).label if named else row.name),
        shown(row.before, row.at_most == "before"),
        shown(row.after, row.at_most == "after"),
        Cell(sign + shown(abs(row.difference)).text, row.difference),
        Cell(relative(row)),
    )


def relative(row: Difference) -> str:
    """The change as a share of the value before, or as a factor where that is clearer."""
    if row.at_most:
        return "at least"
    if not row.before:
        return "new" if row.after else ""
    if not row.after:
        return "gone"
    frac = row.difference / row.before
    return f"{1 + frac:,.0f}×" if frac > MANIFOLD_FRAC else change(frac)
