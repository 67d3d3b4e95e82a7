"""Every rank's step as a bar of its components."""

from __future__ import annotations

from typing import Any

from tdiag.model.diagnosis import RankStep
from tdiag.report.document import Cell, Table
from tdiag.report.html.parts import Chart, label, rgb, sheet
from tdiag.report.words import NOTHING, component
from tdiag.units import duration, plural

RANK_PX, AXIS_PX, LEAST_PX, MOST_PX = 26, 110, 200, 900


Ranks = tuple[RankStep, ...]


def chart(ranks: Ranks) -> Chart:
    names = _components(ranks)
    late = next((rank.rank for rank in ranks if rank.late), None)
    said = "" if late is None else f"The others wait for rank {late}: it communicates least."
    return Chart(
        id="ranks",
        title="Ranks",
        figure={
            "data": [_bars(ranks, name) for name in names],
            "layout": {
                "barmode": "stack",
                "bargap": 0.2,
                "xaxis": {"title": {"text": "ms a step"}},
                "yaxis": {"autorange": "reversed", "title": {"text": "rank"}, "type": "category",
                          "fixedrange": True},
                "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0,
                           "traceorder": "normal"},
                "margin": {"t": 60},
            },
        },
        summary=f"{plural(len(ranks), 'rank')}. {said}".strip(),
        height=min(MOST_PX, max(LEAST_PX, len(ranks) * RANK_PX + AXIS_PX)),
        note=said,
        table=_table(ranks, names),
    )  # fmt: skip


def _components(ranks: Ranks) -> list[str]:
    """Components by their largest time in any rank, largest first."""
    most: dict[str, float] = {}
    for rank in ranks:
        for part in rank.components:
            most[part.component] = max(most.get(part.component, 0.0), part.ns)
    return sorted((name for name in most if most[name] > 0), key=lambda name: -most[name])


def _bars(ranks: Ranks, name: str) -> dict[str, Any]:
    words = component(name)
    return {
        "type": "bar",
        "orientation": "h",
        "name": label(words.label),
        "y": [str(rank.rank) for rank in ranks],
        "x": [round(_ns(rank, name) / 1e6, 4) for rank in ranks],
        "marker": {"color": rgb(words.color)},
        "hovertemplate": f"rank %{{y}}: %{{x}} ms<extra>{label(words.label)}</extra>",
    }


def _table(ranks: Ranks, names: list[str]) -> Table:
    rows = []
    for rank in ranks:
        waited = rank.communication_ns
        rows.append(
            [Cell(str(rank.rank), rank.rank), Cell(duration(rank.step_ns), rank.step_ns),
             Cell(NOTHING if waited is None else duration(waited), waited),
             *(_time(_ns(rank, name)) for name in names)]
        )  # fmt: skip
    columns = {"rank": "", "step": "", "all communication": "overlapped or not"}
    return sheet(
        "ranks-chart-table",
        "Ranks, per step",
        columns | {component(name).label: component(name).meaning for name in names},
        rows,
    )


def _ns(rank: RankStep, name: str) -> int:
    return sum(part.ns for part in rank.components if part.component == name)


def _time(ns: int) -> Cell:
    return Cell(duration(ns), ns) if ns else Cell(NOTHING)
