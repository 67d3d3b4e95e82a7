"""Step times over the run: every window, epoch and outlier."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tdiag.evidence.steps import StepHistory, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.probe import wire
from tdiag.report.document import Cell, Table
from tdiag.report.html.parts import Chart, label, rgb, sheet
from tdiag.units import duration, plural

Ints = npt.NDArray[np.int64]

FEWEST = 2  # steps: with fewer there is a sentence instead of a chart
MOST_POINTS = 2_000
# Tukey's "far out" values (Exploratory Data Analysis, 1977): beyond three interquartile ranges.
FAR_OUT = 3.0
# With a longest step this many times the median, a linear axis would flatten all others.
LOG_FROM = 20

# window → its label and colour, in the legend's order. All other windows share the last entry.
CLEAN = wire.WINDOWS[wire.BASELINE]
WINDOWS = {
    "clean": (CLEAN.tool, rgb(f"color({CLEAN.color})")),
    **{w.name: (w.tool, rgb(f"color({w.color})")) for w in wire.WINDOWS.values() if w != CLEAN},
    "other": ("not judged", rgb("color(244)")),
}


def chart(evidence: Evidence) -> Chart | None:
    """Every step of a run, or the traced steps of a bare trace."""
    steps = evidence.get(StepHistory)
    traced = evidence.get(TracedSteps)
    if steps is None and traced is not None:
        durations = traced.durations_ns
        count = len(durations)
        steps = StepHistory(
            end_ns=tuple(np.cumsum(durations).tolist()),
            durations_ns=durations,
            windows=(wire.TRACE,) * count,
            clean=(False,) * count,
        )
    if steps is None or sum(ns > 0 for ns in steps.durations_ns) < FEWEST:
        return None
    return _chart(steps)


def _chart(steps: StepHistory) -> Chart:
    times = np.array(steps.durations_ns, np.int64)
    names = np.array(
        [
            "clean" if clean else name if name in WINDOWS else "other"
            for name, clean in zip(steps.windows, steps.clean, strict=True)
        ]
    )
    measured = times > 0  # 0: tdiag itself worked during the step
    kept = _thinned(times, measured)
    clean = times[measured & (names == "clean")]
    far = _far_out(times, measured & (names == "clean"))
    data = [
        _points(name, kept[names[kept] == name], times)
        for name in WINDOWS
        if (measured & (names == name)).any()
    ]
    if len(far):
        data.append(_outliers(far[:MOST_POINTS], times))
    tall = times[measured].max() > LOG_FROM * np.median(times[measured])
    epochs = np.searchsorted(np.array(steps.end_ns), np.array(steps.epochs_ns, np.int64))
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "step"}, "range": [-0.01 * len(times) - 1, 1.01 * len(times)]},
        "yaxis": {
            "title": {"text": "ms"},
            **({"type": "log"} if tall else {"rangemode": "tozero"}),
        },
        "shapes": [_epoch(int(at)) for at in epochs[:200]],
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "entrywidth": 100},
        "margin": {"t": 40},
    }
    if len(clean):
        layout["shapes"].append(_level(float(np.median(clean)) / 1e6))
    return Chart(
        id="steps",
        title="Step times over the run",
        figure={"data": data, "layout": layout},
        summary=_summary(times[measured], clean, len(far), len(epochs)),
        height=340,
        note=_note(len(clean), len(epochs), len(far), int(measured.sum()) - len(kept)),
        table=_table(names, times, measured),
    )


def _points(name: str, steps: Ints, times: Ints) -> dict[str, Any]:
    said, color = WINDOWS[name]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": said,
        "x": steps.tolist(),
        "y": _ms(times[steps]),
        "marker": {"color": color, "size": 5},
        "hovertemplate": f"step %{{x}}: %{{y}} ms<extra>{label(said)}</extra>",
    }


def _outliers(steps: Ints, times: Ints) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "outlier",
        "x": steps.tolist(),
        "y": _ms(times[steps]),
        "marker": {"symbol": "circle-open", "size": 12, "color": rgb("color(167)"),
                   "line": {"width": 2}},
        "hovertemplate": "step %{x}: %{y} ms<extra>outlier</extra>",
    }  # fmt: skip


def _ms(times: Ints) -> list[float]:
    return [round(ns / 1e6, 4) for ns in times.tolist()]


def _far_out(times: Ints, clean: npt.NDArray[np.bool_]) -> Ints:
    """The clean steps above the third quartile by more than ``FAR_OUT`` interquartile ranges."""
    if clean.sum() < 4:  # a quartile each
        return np.empty(0, np.int64)
    low, high = np.percentile(times[clean], [25, 75])
    return np.flatnonzero(clean & (times > high + FAR_OUT * (high - low)))


def _thinned(times: Ints, measured: npt.NDArray[np.bool_]) -> Ints:
    """The steps to draw; if there are too many, the shortest and the longest of each interval."""
    steps = np.flatnonzero(measured)
    if len(steps) <= MOST_POINTS:
        return steps
    stretches = np.array_split(steps, MOST_POINTS // 2)
    ends = [(s[times[s].argmin()], s[times[s].argmax()]) for s in stretches]
    return np.unique(np.array(ends))


def _epoch(step: int) -> dict[str, Any]:
    return {"type": "line", "x0": step - 0.5, "x1": step - 0.5, "y0": 0, "y1": 1,
            "yref": "paper", "line": {"dash": "dot", "width": 1}}  # fmt: skip


def _level(ms: float) -> dict[str, Any]:
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": ms, "y1": ms,
            "line": {"dash": "dash", "width": 1}}  # fmt: skip


def _summary(times: Ints, clean: Ints, outliers: int, epochs: int) -> str:
    judged = times if not len(clean) else clean
    which = "clean steps" if len(clean) else "traced steps"
    return (
        f"{plural(len(times), 'step')}, of them {len(judged):,} {which}: median"
        f" {duration(float(np.median(judged)))}, shortest {duration(int(judged.min()))}, longest"
        f" {duration(int(judged.max()))}; {plural(outliers, 'outlier')}, {plural(epochs, 'epoch')}."
    )


def _note(clean: int, epochs: int, outliers: int, hidden: int) -> str:
    said = ["Dashed: the median clean step."] if clean else []
    if epochs:
        said.append("Dotted: a new pass over the training data.")
    if outliers:
        said.append("Ringed: clean steps beyond the third quartile by three interquartile ranges.")
    if hidden:
        said.append("Only the shortest and the longest step of each interval are drawn.")
    return " ".join(said)


def _table(names: npt.NDArray[np.str_], times: Ints, measured: npt.NDArray[np.bool_]) -> Table:
    rows = []
    for name, (said, _) in WINDOWS.items():
        mine = times[measured & (names == name)]
        if len(mine):
            numbers = (np.median(mine), np.percentile(mine, 90), mine.max())
            cells = [Cell(duration(float(ns)), float(ns)) for ns in numbers]
            rows.append([Cell(said), Cell(f"{len(mine):,}", len(mine)), *cells])
    columns = dict.fromkeys(("window", "steps", "median", "p90", "longest"), "")
    return sheet("steps-table", "Step times by window", columns, rows)
