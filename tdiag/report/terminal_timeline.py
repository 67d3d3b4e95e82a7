"""One median step over time: a row for the host and one for each kind of device work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from tdiag.model.timeline import Span, Timeline
from tdiag.report.page import Page
from tdiag.report.text import GLUE, clip, inert
from tdiag.report.words import QUIET, component
from tdiag.units import percent, scale_for

HOST = "host"
_ROWS = {"compute": "compute", "comm": "comm", "h2d": "H2D copy", "d2h": "D2H copy"}
_FILLS = "█▓▒░▚▞▖▝"  # without colour; any further kinds of host activity look like the last
_HEIGHTS = " ▁▂▃▄▅▆▇█"
_NOTHING = "·"
_LABEL_CELLS = 8
_SHARE_CELLS = 5
_TICKS = 4


def timeline(found: Timeline, page: Page) -> Iterable[RenderableType]:
    """Each column shows what the host mostly did in it, and how much of it the device worked."""
    width = max(_TICKS, page.width - _LABEL_CELLS - _SHARE_CELLS - 7)
    rows: list[RenderableType] = []
    legend: list[RenderableType] = []
    for lane in found.lanes:
        if lane.name == HOST:
            columns = _states(lane.spans, found.step_ns, width)
            fills = _fills(columns, page)
            rows.append(_row(HOST, Text.assemble(*(fills[kind] for kind in columns))))
            legend.append(Padding(_legend(fills, page), (0, 1, 0, _LABEL_CELLS + 4)))
        else:
            rows += _device(lane.spans, found.step_ns, width)
    return (*rows, _row("", _axis(found.step_ns, width)), *legend)


def _device(spans: Sequence[Span], step_ns: int, width: int) -> Iterator[Text]:
    """One row per kind; the height is the share of the column."""
    for kind in dict.fromkeys(span.kind for span in spans):
        mine = [span for span in spans if span.kind == kind]
        busy = sum(span.end_ns - span.begin_ns for span in mine) / step_ns
        heights = "".join(map(_height, _covered(mine, step_ns, width)))
        bar = Text(heights, component(kind).color)
        yield _row(_ROWS.get(kind, kind), bar, percent(busy))


def _row(label: str, bar: Text, share: str = "") -> Text:
    name = clip(inert(label), _LABEL_CELLS).ljust(_LABEL_CELLS)
    return Text.assemble((f"  {name}  ", QUIET), bar, f"  {share.rjust(_SHARE_CELLS)}",
                         no_wrap=True)  # fmt: skip


def _covered(spans: Iterable[Span], step_ns: int, width: int) -> list[float]:
    """For each column, the share of its time that the spans cover, 0..1."""
    columns = [0.0] * width
    per_ns = width / step_ns
    for span in spans:
        begin, end = max(span.begin_ns * per_ns, 0.0), min(span.end_ns * per_ns, float(width))
        at = int(begin)
        while at < end:
            columns[at] += min(end, at + 1) - max(begin, at)
            at += 1
    return columns


def _height(share: float) -> str:
    """At least an eighth for anything above zero."""
    return _HEIGHTS[max(min(round(share * 8), 8), share > 0)]


def _states(spans: Sequence[Span], step_ns: int, width: int) -> list[str]:
    """What lasted longest in each column; "" if that has no name."""
    kinds = list(dict.fromkeys(span.kind for span in spans))
    shares = [_covered([s for s in spans if s.kind == kind], step_ns, width) for kind in kinds]
    columns = []
    for there in zip(*shares, strict=True):
        named = max(there)
        columns.append(kinds[there.index(named)] if named >= 1 - sum(there) else "")
    return columns


def _fills(columns: Sequence[str], page: Page) -> dict[str, tuple[str, str]]:
    """Kind → character and style; the kind with most columns first, "" last."""
    kinds = Counter(kind for kind in columns if kind)
    fills = {}
    for number, (kind, _) in enumerate(kinds.most_common()):
        pattern = _FILLS[0] if page.color else _FILLS[min(number, len(_FILLS) - 1)]
        fills[kind] = (pattern, component(kind).color)
    return fills | {"": (_NOTHING, QUIET)} if "" in columns else fills


def _axis(step_ns: int, width: int) -> Text:
    """Times at equal distances, with the unit at the last."""
    unit, decimals, ns_per_digit = scale_for(step_ns)
    digits = max(0, decimals - 1)
    line = [" "] * width
    for tick in range(_TICKS + 1):
        value = f"{step_ns * tick / _TICKS / ns_per_digit / 10**decimals:,.{digits}f}"
        shown = "0" if tick == 0 else f"{value} {unit}" if tick == _TICKS else value
        at = width * tick // _TICKS
        begin = max(0, min(at - (len(shown) // 2 if tick else 0), width - len(shown)))
        if all(cell == " " for cell in line[max(0, begin - 1) : begin + len(shown) + 1]):
            line[begin : begin + len(shown)] = shown
    return Text("".join(line)[:width], QUIET)


def _legend(fills: dict[str, tuple[str, str]], page: Page) -> Text:
    text = Text()
    for kind, (pattern, style) in fills.items():
        label = inert(component(kind).label, 40) if kind else "none of these"
        text.append("■" if page.color and kind else pattern, style)
        text.append(f"{GLUE}{label}  ".replace(" ", GLUE))
    return text
