"""A history's step time per check, each with its interval."""

from __future__ import annotations

from typing import Any

from tdiag.report.document import Cell, Table, Tone, Trend
from tdiag.report.html.parts import Chart, label, rgb, sheet
from tdiag.report.words import BAD, GOOD, WARN
from tdiag.units import duration

COLORS: dict[Tone, str] = {"good": rgb(GOOD), "bad": rgb(BAD), "unsure": rgb(WARN)}
MOST_TICKS = 20


def chart(found: Trend) -> Chart:
    points = found.points
    margin = (found.high - found.low) / 20
    ticks = range(0, len(points), -(-len(points) // MOST_TICKS))
    layout: dict[str, Any] = {
        "xaxis": {"tickvals": list(ticks), "ticktext": [label(points[i].label) for i in ticks],
                  "tickangle": -45, "automargin": True, "zeroline": False},
        "yaxis": {"title": {"text": "ms a step"},
                  "range": [_ms(found.low - margin), _ms(found.high + margin)]},
        "shapes": [_edge(index) for index in found.shifts],
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "margin": {"t": 40, "l": 64},
    }  # fmt: skip
    verdicts = dict.fromkeys(point.verdict for point in points)
    return Chart(
        id=found.id,
        title=found.title,
        figure={"data": [*(_points(v, found) for v in verdicts), *_levels(found)],
                "layout": layout},
        summary=f"{found.summary}.",
        height=360,
        note="; ".join(text for text, _ in found.shifts.values()),
        table=_table(found),
    )  # fmt: skip


def _points(verdict: str, found: Trend) -> dict[str, Any]:
    mine = [(i, point) for i, point in enumerate(found.points) if point.verdict == verdict]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": verdict,
        "x": [i for i, _ in mine],
        "y": [_ms(point.ns) for _, point in mine],
        "error_y": {
            "type": "data", "symmetric": False, "thickness": 1, "width": 0,
            "array": [_ms(point.high - point.ns) for _, point in mine],
            "arrayminus": [_ms(point.ns - point.low) for _, point in mine],
        },
        "marker": {"color": COLORS[mine[0][1].tone], "size": 8},
        "text": [
            f"{label(p.label)} {label(p.subject)}<br>{p.day}<br>{label(duration(p.ns))}"
            for _, p in mine
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _levels(found: Trend) -> list[dict[str, Any]]:
    """The median between lasting changes, if there are any."""
    if not found.shifts:
        return []
    bounds = [0, *found.shifts, len(found.points)]
    x: list[float | None] = []
    y: list[float | None] = []
    for start, end, ns in zip(bounds, bounds[1:], found.levels, strict=False):
        x += [start - 0.5, end - 0.5, None]
        y += [_ms(ns), _ms(ns), None]
    return [{"type": "scatter", "mode": "lines", "name": "median between changes", "x": x, "y": y,
             "hoverinfo": "skip", "line": {"color": rgb("color(32)"), "width": 2}}]  # fmt: skip


def _edge(index: int) -> dict[str, Any]:
    return {"type": "line", "x0": index - 0.5, "x1": index - 0.5, "y0": 0, "y1": 1,
            "yref": "paper", "line": {"dash": "dot", "width": 1}}  # fmt: skip


def _table(found: Trend) -> Table:
    rows = [
        [Cell(p.label), Cell(p.subject), Cell(p.day), Cell(p.verdict), Cell(duration(p.ns), p.ns),
         Cell(p.change), Cell(p.against)]
        for p in reversed(found.points)
    ]  # fmt: skip
    names = ("commit", "subject", "day (UTC)", "verdict", "step", "change", "against")
    return sheet(f"{found.id}-table", "Checks", dict.fromkeys(names, ""), rows)


def _ms(ns: float) -> float:
    return round(ns / 1e6, 5)
