"""Every rank's step as a bar of its components."""

from __future__ import annotations

from typing import Any

from tdiag.diagnose.details import Details
from tdiag.evidence.device import Ranks
from tdiag.report.html.parts import NOTHING, Cell, Chart, Table
from tdiag.report.html.text import label, rgb
from tdiag.report.words import component
from tdiag.units import duration, plural

RANK_PX, AXIS_PX, LEAST_PX, MOST_PX = 26, 110, 200, 900


def chart(details: Details) -> Chart | None:
    ranks = details.ranks
    if ranks is None:
        return None
    names = _components(ranks)
    late = details.late_rank
    why = ": it communicates least" if ranks.source == "trace" else ""
    said = "" if late is None else f"The others wait for rank {late}{why}."
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
        summary=f"{plural(len(ranks.ranks), 'rank')}. {said}".strip(),
        height=min(MOST_PX, max(LEAST_PX, len(ranks.ranks) * RANK_PX + AXIS_PX)),
        note=said,
        table=_table(ranks, names),
    )  # fmt: skip


def _components(ranks: Ranks) -> list[str]:
    """Largest in any rank first."""
    most: dict[str, float] = {}
    for rank in ranks.ranks:
        for name, ns in rank.components_ns.items():
            most[name] = max(most.get(name, 0.0), ns)
    return sorted((name for name in most if most[name] > 0), key=lambda name: -most[name])


def _bars(ranks: Ranks, name: str) -> dict[str, Any]:
    words = component(name)
    return {
        "type": "bar",
        "orientation": "h",
        "name": label(words.label),
        "y": [str(rank.rank) for rank in ranks.ranks],
        "x": [round(rank.components_ns.get(name, 0.0) / 1e6, 4) for rank in ranks.ranks],
        "marker": {"color": rgb(words.color)},
        "hovertemplate": f"rank %{{y}}: %{{x}} ms<extra>{label(words.label)}</extra>",
    }


def _table(ranks: Ranks, names: list[str]) -> Table:
    rows = []
    for rank in ranks.ranks:
        told = rank.communication_ns
        rows.append(
            [Cell(str(rank.rank), rank.rank), Cell(duration(rank.step_ns), rank.step_ns),
             Cell(NOTHING if told is None else duration(told), told),
             *(_time(rank.components_ns.get(name)) for name in names)]
        )  # fmt: skip
    columns = {"rank": "", "step": "", "all communication": "overlapped or not"}
    return Table(
        "ranks-table",
        "Ranks, per step",
        columns | {component(name).label: component(name).meaning for name in names},
        rows,
    )


def _time(ns: float | None) -> Cell:
    return Cell(NOTHING) if ns is None else Cell(duration(ns), ns)
