"""The machine over the run: one strip for each resource."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tdiag.evidence.machine import Strip, SystemHistory
from tdiag.report.page import Page
from tdiag.report.terminal_table import GAP, LEFT, RIGHT
from tdiag.report.words import ACCENT, QUIET
from tdiag.units import count, duration, quantity, significant

BARS = "▁▂▃▄▅▆▇█"
NUMBERS = ("min", "mean", "max", "of", "")  # the last one is the unit of all
FEWEST_CELLS = 8  # of a strip

Floats = npt.NDArray[np.float64]


def strips(history: SystemHistory, page: Page) -> Iterable[RenderableType]:
    """Time goes from left to right over the whole run; each cell is the mean of its time. A full
    bar is the limit, or the maximum if there is none; a blank was not measured."""
    rows = [(strip.name, *_numbers(strip, history.t_ns)) for strip in history.strips]
    widths = [
        max([cell_len(title), *(cell_len(row[i]) for row in rows)])
        for i, title in enumerate(("", *NUMBERS))
    ]
    room = page.width - LEFT - RIGHT - sum(widths) - GAP * len(widths)
    cells = max(FEWEST_CELLS, room)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style=QUIET)
    table.add_column("", no_wrap=True)
    table.add_column(_axis(history, cells), no_wrap=True, min_width=cells)
    for title in NUMBERS:
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for strip, (name, *numbers) in zip(history.strips, rows, strict=True):
        drawn = Text(bars(means(strip.values, history.t_ns, cells), _top(strip)), ACCENT)
        table.add_row(Text(name), drawn, *(Text(number) for number in numbers))
    yield Padding(table, (0, RIGHT, 0, LEFT))


def means(values: Sequence[float | None], t_ns: Sequence[int], cells: int) -> Floats:
    """The mean of each of ``cells`` equal parts of the time; NaN where nothing was measured."""
    t = np.array([moment - t_ns[0] for moment in t_ns], np.float64)
    value = np.array([np.nan if v is None else v for v in values], np.float64)
    known = ~np.isnan(value)
    wall = np.diff(t)
    amount = np.concatenate([[0.0], np.cumsum(np.where(known, value, 0.0) * wall)])
    measured = np.concatenate([[0.0], np.cumsum(known * wall)])
    edges = np.linspace(0.0, t[-1], cells + 1)
    part = np.diff(np.interp(edges, t, amount))
    weight = np.diff(np.interp(edges, t, measured))
    result = np.full(cells, np.nan)
    np.divide(part, weight, out=result, where=weight > 1e-6 * edges[1])  # less is rounding
    return result


def bars(values: Floats, top: float) -> str:
    """One character per value: the lowest bar is almost zero, the highest ``top`` or more."""
    levels = (len(BARS) * value / top for value in values.tolist())
    return "".join(" " if x != x else BARS[min(len(BARS) - 1, max(0, int(x)))] for x in levels)


def _top(strip: Strip) -> float:
    return strip.limit or max((v for v in strip.values if v is not None), default=0.0) or 1.0


def _numbers(strip: Strip, t_ns: Sequence[int]) -> list[str]:
    """Minimum, time-weighted mean and maximum of the intervals, the limit, and their unit."""
    known = [v for v in strip.values if v is not None]
    if not known:
        return ["–", "–", "–", "", "not measured"]
    unit, scale = _unit(strip, max(known))
    mean = float(means(strip.values, t_ns, 1)[0])
    shown = [significant(v / scale) for v in (min(known), mean, max(known))]
    return [*shown, count(strip.limit / scale) if strip.limit else "", unit]


def _unit(strip: Strip, most: float) -> tuple[str, float]:
    """The unit that suits the limit, or else the maximum, and its size."""
    if strip.unit == "cores":
        return "cores", 1.0
    if strip.unit == "frac":
        return "%", 0.01
    name = quantity(strip.limit or most, strip.unit)[1]
    return name, _BYTES[name.removesuffix("/s")]


_BYTES = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}


def _axis(history: SystemHistory, cells: int) -> Text:
    end = duration(history.t_ns[-1] - history.t_ns[0])
    line = "─" * (cells - cell_len(end) - 3)
    return Text(f"0 {line} {end}", QUIET)
