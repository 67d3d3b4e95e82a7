"""The history as a page: a chart and a table of each script's checks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tdiag.gate.history import Record, Series
from tdiag.gate.report.history.words import NOTHING, bounds, shift_line, summary
from tdiag.gate.shifts import Shift, shifts
from tdiag.report.html import charted
from tdiag.report.html.parts import Cell, Chart, Table
from tdiag.report.html.text import label, rgb
from tdiag.report.page import Page
from tdiag.report.words import BAD, GOOD, WARN
from tdiag.units import duration

COLORS = {"pass": rgb(GOOD), "regressed": rgb(BAD), "inconclusive": rgb(WARN)}
MOST_TICKS = 20


def render(found: Sequence[Series], page: Page) -> str:
    """One self-contained page."""
    charts = [_chart(number, one) for number, one in enumerate(found)]
    return charted("history.html", charts, nothing=NOTHING)


def _chart(number: int, series: Series) -> Chart:
    records = series.records
    changes = shifts([record.step_ns or 0.0 for record in records])
    every = -(-len(records) // MOST_TICKS)
    low, high = bounds(series)
    margin = (high - low) / 20
    ticks = range(0, len(records), every)
    layout: dict[str, Any] = {
        "xaxis": {"tickvals": list(ticks), "ticktext": [label(records[i].label) for i in ticks],
                  "tickangle": -45, "automargin": True, "zeroline": False},
        "yaxis": {"title": {"text": "ms a step"}, "range": [_ms(low - margin), _ms(high + margin)]},
        "shapes": [_edge(change.index) for change in changes],
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "margin": {"t": 40, "l": 64},
    }  # fmt: skip
    verdicts = dict.fromkeys(record.verdict for record in records)
    return Chart(
        id=f"history-{number}",
        title=series.title,
        figure={
            "data": [*(_points(v, records) for v in verdicts), *_levels(changes, records)],
            "layout": layout,
        },
        summary=f"{series.how.capitalize()}. {summary(series, len(changes))}.",
        height=360,
        note="; ".join(shift_line(change, series) for change in changes),
        table=_table(number, records),
    )


def _points(verdict: str, records: Sequence[Record]) -> dict[str, Any]:
    mine = [(i, r, r.step_ns or 0.0) for i, r in enumerate(records) if r.verdict == verdict]
    told = [
        f"{label(r.label)} {label(r.subject)}<br>{_day(r)}<br>{label(duration(ns))}"
        for _, r, ns in mine
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": verdict,
        "x": [i for i, _, _ in mine],
        "y": [_ms(ns) for _, _, ns in mine],
        "error_y": {
            "type": "data", "symmetric": False, "thickness": 1, "width": 0,
            "array": [_ms((r.high_ns or ns) - ns) for _, r, ns in mine],
            "arrayminus": [_ms(ns - (r.low_ns or ns)) for _, r, ns in mine],
        },
        "marker": {"color": COLORS[verdict], "size": 8},
        "text": told,
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _levels(changes: Sequence[Shift], records: Sequence[Record]) -> list[dict[str, Any]]:
    """The median of each stretch between changes, where there are any."""
    if not changes:
        return []
    bounds = [0, *(change.index for change in changes), len(records)]
    heights = [changes[0].before_ns, *(change.now_ns for change in changes)]
    x: list[float | None] = []
    y: list[float | None] = []
    for start, end, ns in zip(bounds, bounds[1:], heights, strict=False):
        x += [start - 0.5, end - 0.5, None]
        y += [_ms(ns), _ms(ns), None]
    return [{"type": "scatter", "mode": "lines", "name": "median between changes", "x": x, "y": y,
             "hoverinfo": "skip", "line": {"color": rgb("color(32)"), "width": 2}}]  # fmt: skip


def _edge(index: int) -> dict[str, Any]:
    return {"type": "line", "x0": index - 0.5, "x1": index - 0.5, "y0": 0, "y1": 1,
            "yref": "paper", "line": {"dash": "dot", "width": 1}}  # fmt: skip


def _table(number: int, records: Sequence[Record]) -> Table:
    rows = [
        [
            Cell(r.label), Cell(r.subject), Cell(_day(r)), Cell(r.verdict),
            Cell(duration(r.step_ns or 0.0), r.step_ns),
            Cell(f"{r.ratio - 1:+.1%}" if r.ratio else "–", r.ratio), Cell(r.against),
        ]
        for r in reversed(records)
    ]  # fmt: skip
    names = ("commit", "subject", "day (UTC)", "verdict", "step", "change", "against")
    return Table(f"history-{number}-table", "Checks", dict.fromkeys(names, ""), rows)


def _day(record: Record) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(record.unix))


def _ms(ns: float) -> float:
    return round(ns / 1e6, 5)
