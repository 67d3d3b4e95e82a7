"""The traced step of median length over time: host, threads, workers, device and copies."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tdiag.evidence.steps import EventLane, StepEvent, StepEvents
from tdiag.evidence.store import Evidence
from tdiag.report.document import Cell, Table
from tdiag.report.html.parts import Chart, label, rgb, sheet
from tdiag.report.text import clip
from tdiag.report.words import component
from tdiag.units import duration, percent, plural

LANE_PX, AXIS_PX = 34, 60
MOST_WORKERS = 16
MOST_ROWS = 100  # of the table: each lane's longest
NAME_CHARS = 80
FAINTEST = 0.15  # opacity at which a bar can still be seen
NAMED_FRAC = 0.03  # of the step: a shorter bar has no room for its name
ROLES = {
    "host": rgb("color(67)"),
    "worker": rgb("color(136)"),
    "device": rgb("color(29)"),
    "comm": rgb("color(97)"),
    "copies": rgb("color(133)"),
}


def chart(evidence: Evidence) -> Chart | None:
    step = evidence.get(StepEvents)
    if step is None or not step.lanes:
        return None
    lanes = _shown(step)
    data = [_bars(row, lane, step.duration_ns) for row, lane in enumerate(lanes)]
    layout = {
        "barmode": "overlay",
        "bargap": 0.25,
        "xaxis": {"title": {"text": "ms since the step began"},
                  "range": [0, step.duration_ns / 1e6]},
        "yaxis": {"autorange": "reversed", "fixedrange": True, "automargin": True,
                  "showgrid": False, "tickmode": "array", "tickvals": list(range(len(lanes))),
                  "ticktext": [label(lane.name) for lane in lanes]},
        "showlegend": False,
        "uniformtext": {"minsize": 9, "mode": "hide"},
        "margin": {"t": 8},
    }  # fmt: skip
    return Chart(
        id="timeline",
        title="One median step",
        figure={"data": data, "layout": layout},
        summary=f"{plural(len(lanes), 'lane')} in a step of {duration(step.duration_ns)}.",
        height=len(lanes) * LANE_PX + AXIS_PX,
        note=_note(step, lanes),
        table=_table(step, lanes),
    )


def _shown(step: StepEvents) -> list[EventLane]:
    workers = [lane for lane in step.lanes if lane.role == "worker"]
    hidden = workers[MOST_WORKERS:]
    return [lane for lane in step.lanes if lane not in hidden]


def _bars(row: int, lane: EventLane, step_ns: int) -> dict[str, Any]:
    names = [_named(event.name, lane) for event in lane.events]
    lengths = [event.end_ns - event.begin_ns for event in lane.events]
    return {
        "type": "bar",
        "orientation": "h",
        "y": [row] * len(lane.events),
        "base": [round(event.begin_ns / 1e6, 5) for event in lane.events],
        "x": [round(ns / 1e6, 5) for ns in lengths],
        "marker": {"color": [_color(event.name, lane) for event in lane.events],
                   "opacity": [max(FAINTEST, _density(event)) for event in lane.events],
                   "line": {"width": 0}},
        "text": [
            label(name, NAME_CHARS) if ns >= NAMED_FRAC * step_ns else ""
            for name, ns in zip(names, lengths, strict=True)
        ],
        "textposition": "inside",
        "insidetextanchor": "start",
        "textangle": 0,
        "insidetextfont": {"color": "#fff"},
        "hovertext": [
            f"{label(name, NAME_CHARS)}{_others(event)}"
            f"<br>{duration(ns)} from {duration(event.begin_ns)}"
            for name, ns, event in zip(names, lengths, lane.events, strict=True)
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _density(event: StepEvent) -> float:
    """The share of the bar's time that is work."""
    return round(event.busy_ns / (event.end_ns - event.begin_ns or 1), 2)


def _others(event: StepEvent) -> str:
    if event.merged == 1:
        return ""
    return f" and {plural(event.merged - 1, 'other')}, {percent(_density(event))} busy"


def _named(name: str, lane: EventLane) -> str:
    return component(name).label if lane.role == "phases" else name


def _color(name: str, lane: EventLane) -> str:
    return rgb(component(name).color) if lane.role == "phases" else ROLES[lane.role]


def _note(step: StepEvents, lanes: list[EventLane]) -> str:
    said = (
        f"Step {step.number} of {step.of} traced, the one of median length"
        f" ({duration(step.duration_ns)}); torch.profiler slows the host. Drag to zoom in, double"
        " click to zoom out. Events too short to be seen are drawn as one bar, which is fainter the"
        " more idle time lies between them."
    )
    if any(lane.partial for lane in lanes):
        said += " Only some of a worker's fetches are measured."
    hidden = len(step.lanes) - len(lanes)
    return said + (f" {plural(hidden, 'more worker')} not shown." if hidden else "")


def _table(step: StepEvents, lanes: list[EventLane]) -> Table:
    """How long each name took in each lane."""
    rows = []
    for lane in lanes:
        total: dict[str, int] = defaultdict(int)
        count: dict[str, int] = defaultdict(int)
        for event in lane.events:
            name = _named(event.name, lane) + (" …" if event.merged > 1 else "")
            total[name] += event.busy_ns
            count[name] += event.merged
        for name, ns in total.items():
            share = ns / step.duration_ns
            rows.append(
                [Cell(lane.name), Cell(clip(name, NAME_CHARS)),
                 Cell(f"{count[name]:,}", count[name]), Cell(duration(ns), ns),
                 Cell(percent(share), share)]
            )  # fmt: skip
    rows.sort(key=lambda row: -(row[3].value or 0))
    columns = {
        "lane": "", "name": "… = and others too short to show individually", "events": "",
        "time": "in this step", "share": "of this step",
    }  # fmt: skip
    return sheet("timeline-table", "One median step", columns, rows[:MOST_ROWS])
