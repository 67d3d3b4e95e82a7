"""The document of a history: the step time of each checked commit."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence

import msgspec

from tdiag.gate.check_document import TONES
from tdiag.gate.history_file import CheckRecord, Series
from tdiag.gate.shifts import FEWEST, Shift, shifts
from tdiag.report.document import (
    Annotation,
    AnnotationRule,
    Document,
    Headline,
    Level,
    Line,
    Point,
    Section,
    Trend,
)
from tdiag.units import duration, plural

LEAST_SPAN = 0.1  # of the median: a smaller scale would exaggerate noise
NOTHING = "No check in this file has a step time."
SHIFT = AnnotationRule(
    id="lasting-change", name="lasting-change", text="The step time changed for good"
)


def document(found: Sequence[Series]) -> Document:
    """One section per series. The JSON has the records, and the changes as indices into them."""
    trends = [(series, _trend(number, series)) for number, series in enumerate(found)]
    brief = "; ".join(f"{trend.title}: {trend.summary}" for _, trend in trends)
    nothing = Section(id="nothing", title="", blocks=(Line(NOTHING),))
    return Document(
        name="tdiag history",
        title="Step time over commits",
        data={
            "series": [
                {**msgspec.to_builtins(one), "changes": msgspec.to_builtins(_shifts(one))}
                for one in found
            ]
        },
        headline=Headline(title="Step time over commits", brief=brief or NOTHING),
        sections=tuple(_section(one, trend) for one, trend in trends) or (nothing,),
        annotations=tuple(_annotations(trends)),
    )


def _shifts(series: Series) -> list[Shift]:
    return shifts([record.step_ns or 0.0 for record in series.records])


def _section(series: Series, trend: Trend) -> Section:
    lines = Line(series.how, tone="quiet"), Line(trend.summary)
    return Section(id=trend.id, title=series.command, aside=series.machine, blocks=(*lines, trend))


def _trend(number: int, series: Series) -> Trend:
    changes = _shifts(series)
    low, high = _bounds(series)
    levels = [changes[0].before_ns, *(change.now_ns for change in changes)] if changes else []
    return Trend(
        id=f"history-{number}",
        title=series.title,
        summary=_summary(series, len(changes)),
        points=tuple(_point(record) for record in series.records),
        low=low,
        high=high,
        shifts={x.index: (_shift_line(x, series), x.change) for x in changes},
        levels=tuple(levels),
    )


def _point(record: CheckRecord) -> Point:
    ns = record.step_ns or 0.0
    return Point(
        label=record.label,
        day=time.strftime("%Y-%m-%d %H:%M", time.gmtime(record.unix)),
        subject=record.subject,
        verdict=record.verdict,
        tone=TONES[record.verdict],
        ns=ns,
        low=record.low_ns or ns,
        high=record.high_ns or ns,
        change=f"{record.ratio - 1:+.1%}" if record.ratio else "–",
        against=record.against,
    )


def _annotations(trends: Sequence[tuple[Series, Trend]]) -> Iterator[Annotation]:
    for series, trend in trends:
        for text, change in trend.shifts.values():
            level: Level = "warning" if change > 0 else "note"
            yield Annotation(rule=SHIFT, level=level, title=text, name=series.title)


def _bounds(series: Series) -> tuple[float, float]:
    """The ends of the scale for its step times, ns."""
    times = [record.step_ns or 0.0 for record in series.records]
    middle = statistics.median(times)
    half = middle * LEAST_SPAN / 2
    return min(*times, middle - half), max(*times, middle + half)


def _shift_line(shift: Shift, series: Series) -> str:
    """``+8.1% from 1a2b3c4d5e on, 2.41 ms → 2.60 ms``."""
    before, now = series.records[shift.index - 1], series.records[shift.index]
    line = (
        f"{shift.change:+.1%} from {now.label} on, {duration(shift.before_ns)} →"
        f" {duration(shift.now_ns)}"
    )
    if before.baseline_ns != now.baseline_ns:
        line += "; the baseline was rewritten here, which may be the reason"
    return line


def _summary(series: Series, found: int) -> str:
    """How many checks, and how many lasting changes among them."""
    checks = len(series.records)
    if checks < FEWEST:
        return f"{plural(checks, 'check')}; lasting changes are detected from {FEWEST} checks on"
    return f"{plural(checks, 'check')}, {plural(found, 'lasting change')}"
