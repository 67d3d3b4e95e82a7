"""The machine over the run: one strip each for cores, disk, memory and devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from tdiag.evidence.machine import Strip, SystemHistory
from tdiag.evidence.steps import StepHistory
from tdiag.evidence.store import Evidence
from tdiag.probe.wire import PROFILED
from tdiag.report.document import Cell, Table
from tdiag.report.html.charts.step_times import WINDOWS
from tdiag.report.html.parts import Chart, label, rgb, sheet
from tdiag.report.words import NOTHING
from tdiag.units import plural, quantity

MOST_POINTS = 600  # of a strip
STRIP_PX, GAP_PX, AXIS_PX = 74, 14, 60
COLOR = {"cores": "color(32)", "frac": "color(29)", "bytes": "color(98)",
         "bytes_per_s": "color(136)"}  # fmt: skip
FULL_FRAC = 0.3  # of its limit: from this share on, memory is drawn relative to the limit
_SCALES = {"cores": 1.0, "frac": 0.01, "bytes": 2.0**30, "bytes_per_s": 2.0**20}
_UNITS = {"cores": "cores", "frac": "%", "bytes": "GiB", "bytes_per_s": "MiB/s"}


def chart(evidence: Evidence) -> Chart | None:
    history = evidence.get(SystemHistory)
    if history is None or not history.strips:
        return None
    strips = history.strips
    seconds = [(t - history.t_ns[0]) / 1e9 for t in history.t_ns]
    height = len(strips) * (STRIP_PX + GAP_PX) + AXIS_PX
    data, layout = [], _layout(seconds[-1])
    for number, strip in enumerate(strips):
        axis = "y" if number == 0 else f"y{number + 1}"
        data.append(_line(strip, seconds, axis))
        layout["yaxis" + axis[1:]] = _axis(strip, number, len(strips))
        layout["annotations"].append(_title(strip, axis))
    if steps := evidence.get(StepHistory):
        layout["shapes"] = _windows(steps, history)
    return Chart(
        id="system",
        title="The machine over the run",
        figure={"data": data, "layout": layout},
        summary=f"{plural(len(strips), 'measure')} over {seconds[-1]:.0f} s; the table has each.",
        height=height,
        note=_note(history, "shapes" in layout),
        table=_table(history),
    )


def _layout(end_s: float) -> dict[str, Any]:
    return {
        "xaxis": {"title": {"text": "seconds since the start"}, "range": [0, end_s],
                  "anchor": "free", "position": 0},
        "annotations": [],
        "showlegend": False,
        "margin": {"t": 8},
        "hovermode": "x",
    }  # fmt: skip


def _line(strip: Strip, seconds: Sequence[float], axis: str) -> dict[str, Any]:
    """A value applies to the interval that ends at its sample."""
    x, y = _thinned(seconds[1:], strip.values)
    scale = _SCALES.get(strip.unit, 1.0)
    unit = label(_UNITS.get(strip.unit, strip.unit))
    color = rgb(COLOR.get(strip.unit, "color(32)"))
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label(strip.name),
        "x": [round(t, 2) for t in x],
        "y": [None if v is None else round(v / scale, 3) for v in y],
        "yaxis": axis,
        "line": {"color": color, "width": 1.5, "shape": "vh"},
        "fill": "tozeroy",
        "fillcolor": color + "38",
        "hovertemplate": f"%{{y}} {unit}<extra>{label(strip.name)}</extra>",
    }


def _thinned(
    x: Sequence[float], y: Sequence[float | None]
) -> tuple[Sequence[float], Sequence[float | None]]:
    """Means of equal intervals if there are too many points."""
    if len(x) <= MOST_POINTS:
        return x, y
    values = np.array([np.nan if v is None else v for v in y], np.float64)
    edges = np.linspace(0, len(x), MOST_POINTS + 1).astype(int)
    means: list[float | None] = []
    for low, high in pairwise(edges.tolist()):
        known = values[low:high][~np.isnan(values[low:high])]
        means.append(float(known.mean()) if len(known) else None)
    return [x[edge - 1] for edge in edges.tolist()[1:]], means


def _axis(strip: Strip, number: int, count: int) -> dict[str, Any]:
    """The first strip is at the top; each begins at zero."""
    part = 1 / count
    gap = part * GAP_PX / (STRIP_PX + GAP_PX)
    top = 1 - number * part
    most = max((v for v in strip.values if v is not None), default=0.0) or 1.0
    # A small share of a large limit would be a flat line at the bottom.
    full = strip.limit if strip.limit and most > FULL_FRAC * strip.limit else 0.0
    high = (strip.limit if strip.limit and strip.unit != "bytes" else full or most * 1.1) / (
        _SCALES.get(strip.unit, 1.0)
    )
    return {"domain": [max(0.0, top - part + gap), top - gap], "range": [0, high * 1.02],
            "fixedrange": True, "nticks": 3, "anchor": "x"}  # fmt: skip


def _title(strip: Strip, axis: str) -> dict[str, Any]:
    unit = "" if strip.unit == "cores" else f", {_UNITS.get(strip.unit, strip.unit)}"
    limit = f" (of {_number(strip.limit, strip.unit)})" if strip.limit else ""
    said = strip.name + unit + ("" if strip.unit == "frac" else limit)
    return {"text": label(said), "xref": "paper", "x": 0,
            "yref": f"{axis} domain", "y": 1, "yanchor": "bottom", "xanchor": "left",
            "showarrow": False, "font": {"size": 11}}  # fmt: skip


def _windows(steps: StepHistory, history: SystemHistory) -> list[dict[str, Any]]:
    """The times in which a profiler ran, in the profiler's colour."""
    shapes = []
    rows = zip(steps.windows, steps.end_ns, steps.durations_ns, strict=True)
    for name, group in groupby(rows, key=lambda row: row[0]):
        if name in PROFILED:
            mine = list(group)
            begin, end = mine[0][1] - mine[0][2], mine[-1][1]
            shapes.append(
                {"type": "rect", "yref": "paper", "y0": 0, "y1": 1,
                 "x0": (begin - history.t_ns[0]) / 1e9, "x1": (end - history.t_ns[0]) / 1e9,
                 "fillcolor": WINDOWS[name][1], "opacity": 0.12, "line": {"width": 0},
                 "layer": "below"}
            )  # fmt: skip
    return shapes[:200]


def _note(history: SystemHistory, shaded: bool) -> str:
    said = "The whole run. Memory shared by several processes counts once for each."
    if shaded:
        said += " Shaded: a profiler ran, in the colours of the step times."
    return f"{said} No GPU: {history.no_gpu}." if history.no_gpu else said


def _table(history: SystemHistory) -> Table:
    rows = []
    for strip in history.strips:
        known = [v for v in strip.values if v is not None]
        numbers = (min(known), sum(known) / len(known), max(known)) if known else (None,) * 3
        cells = [
            Cell(NOTHING if v is None else _number(v, strip.unit), v)
            for v in (*numbers, strip.limit)
        ]
        rows.append([Cell(strip.name), *cells])
    columns = {"measure": "", "least": "", "mean": "of the samples", "most": "", "limit": ""}
    return sheet("system-table", "The machine over the run", columns, rows)


def _number(value: float, unit: str) -> str:
    return " ".join(quantity(value, unit)).strip()
