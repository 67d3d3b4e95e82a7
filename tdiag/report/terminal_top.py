"""The largest kernels, ops and functions of the traced step, with their shares."""

from __future__ import annotations

from collections.abc import Sequence

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tdiag.model.diagnosis import Part, Top
from tdiag.report.page import Page
from tdiag.report.text import clip, clip_middle, inert, kernel_name, location
from tdiag.report.words import ACCENT, QUIET
from tdiag.units import count, duration, percent

FIRST = 5  # of each, unless all are asked for
_NAME_CHARS = 2000  # a trace's names are cut at 1,000; escapes make them longer
_TITLES = {
    "kernels": "kernels and copies",
    "ops": "ops by device time",
    "modules": "modules by device time",
    "functions": "your functions by device time",
    "host_ops": "ops by own host time",
}
_SCALED = ", scaled to the clean step"
_ALWAYS = ("kernels", "ops", "functions")  # those that say what to change


def top(found: Sequence[Top], page: Page) -> RenderableType | None:
    """Two tables side by side where there is room; None where nothing was traced."""
    device = any(x.of == "kernels" for x in found)
    shown = [x for x in found if page.all_findings or x.of in _ALWAYS or not device]
    if not shown:
        return None
    room = (page.width - 2) // 2 if page.wide and len(shown) > 1 else page.width
    tables = [_table(x, room, page) for x in shown]
    rows: list[RenderableType] = []
    step = 2 if room < page.width else 1
    for at in range(0, len(tables), step):
        rows += [Text()] if at else []
        beside = tables[at : at + step]
        rows.append(Columns(beside, padding=0, width=room) if step == 2 else beside[0])
    return Group(*rows)


def _table(found: Top, room: int, page: Page) -> RenderableType:
    parts = found.parts if page.all_findings else found.parts[:FIRST]
    rows = [
        (
            count(part.count),
            duration(part.ns),
            percent(part.ns / found.total_ns) if found.total_ns else "",
        )
        for part in parts
    ]
    header = ("calls", "time", "share")
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(3)]
    room -= 3 + sum(width + 2 for width in widths)
    title = _TITLES[found.of] + (_SCALED if found.scaled else "")
    lines = [_line(Text(clip(title, room)), header, room, widths)]
    lines[0].style = QUIET
    for part, row in zip(parts, rows, strict=True):
        lines.append(_line(_name(part, room, page), row, room, widths))
    return Padding(Group(*lines), (0, 1, 0, 2))


def _name(part: Part, room: int, page: Page) -> Text:
    name = inert(part.name, _NAME_CHARS)
    if part.at is None:
        return Text(clip_middle(kernel_name(name, room), room))
    shown = Text(clip(name, room // 2) + " ")
    return shown.append_text(location(part.at, page.base_dir, room - shown.cell_len, ACCENT))


def _line(name: Text, numbers: Sequence[str], room: int, widths: Sequence[int]) -> Text:
    name.pad_right(room - name.cell_len)
    for cell, width in zip(numbers, widths, strict=True):
        name.append("  " + cell.rjust(width))
    name.no_wrap = True
    return name
