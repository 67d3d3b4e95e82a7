"""The outcome in a terminal: the verdict, then what changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from tdiag.gate.outcome import CounterChange, LineChange, Outcome
from tdiag.gate.report.words import (
    advice,
    interval,
    mean_interval,
    method,
    summary,
    title,
    value,
)
from tdiag.model.comparison import Change, ChangeTable
from tdiag.report.changes import indented, table_lines
from tdiag.report.page import Page, heading
from tdiag.report.text import clip, inert, prose, spot
from tdiag.report.words import ACCENT, BAD, GOOD, HEAD, QUIET, WARN
from tdiag.units import duration, plural

STYLES = {"pass": GOOD, "regressed": BAD, "inconclusive": WARN}
_TABLE_WIDTH = 80
_FILES = 5  # of the diff, named; the rest are counted


def render(outcome: Outcome, page: Page) -> str:
    """Text of at most ``page.width`` cells a line."""
    return page.draw(*_parts(outcome, page))


def _parts(outcome: Outcome, page: Page) -> Iterator[RenderableType]:
    yield from heading(inert(outcome.command), inert(f"against {outcome.against}"), page)
    style = f"bold {STYLES[outcome.verdict]}"
    said = Text.assemble((title(outcome), style), ": ", prose(summary(outcome)))
    yield Padding(said, (0, 1, 0, 1))
    for reason in outcome.reasons[1:]:
        yield indented(Text(prose(f"also {reason}")))
    for text in advice(outcome):
        yield indented(Text(prose(text), ACCENT))
    if outcome.step or outcome.side_costs:
        yield Text()
    if step := outcome.step:
        before, now = duration(step.before_ns), duration(step.now_ns)
        yield _row("typical step", f"{before} → {now}", interval(step))
        yield _row("mean step", "", mean_interval(step))
    for cost in outcome.side_costs:
        yield _row(cost.name, f"{value(cost, cost.before)} → {value(cost, cost.after)}", "")
    yield from _where(outcome, page)
    yield from _work(outcome, page)
    yield from _findings(outcome, page)
    yield from _foot(outcome)


def _row(name: str, values: str, change: str) -> Text:
    line = Text("  ", no_wrap=True, overflow="ellipsis")
    return line.append(f"{name:<14}", HEAD).append(f"  {values:<20}  {change}".rstrip())


def _where(outcome: Outcome, page: Page) -> Iterator[RenderableType]:
    if outcome.components:
        longest = max(sum(c.before for c in outcome.components),
                      sum(c.after for c in outcome.components))  # fmt: skip
        yield Text()
        yield from table_lines(
            ChangeTable(title="Budget", rows=outcome.components), longest, _narrow(page)
        )


def _narrow(page: Page) -> Page:
    """Names here are short: their numbers need not stand at the far end of a wide line."""
    return replace(page, width=min(page.width, _TABLE_WIDTH))


def _work(outcome: Outcome, page: Page) -> Iterator[RenderableType]:
    if not outcome.counters:
        return
    rows = tuple(Change(c.name, c.unit, c.before, c.now) for c in outcome.counters)
    yield Text()
    yield from table_lines(ChangeTable(title="Work per step", rows=rows), 0.0, _narrow(page))
    for counter in outcome.counters:
        if counter.lines:
            yield indented(Text(prose(f"{counter.name}:"), QUIET))
            for line in counter.lines:
                yield _line(counter, line, page)


def _line(counter: CounterChange, line: LineChange, page: Page) -> Text:
    numbers = f"{value(counter, line.before)} → {value(counter, line.now)}"
    shown = Text("    ", no_wrap=True, overflow="ellipsis").append(f"{numbers:<18}  ")
    if line.place:
        shown.append(spot(line.place, page.base_dir), ACCENT).append("  ")
    if line.in_diff:
        shown.append("in the diff  ", WARN)
    code = line.text.rpartition(": ")[2]
    return shown.append(clip(inert(code), max(1, page.width - shown.cell_len)), QUIET)


def _findings(outcome: Outcome, page: Page) -> Iterator[RenderableType]:
    if outcome.findings:
        yield Text()
        yield indented(Text("Found now and not before", HEAD))
    for found in outcome.findings:
        at = f" at {spot(found.location, page.base_dir)}" if found.location else ""
        yield indented(Text(prose(f"{found.code} {found.name}{at}: {found.summary}")))


def _foot(outcome: Outcome) -> Iterator[RenderableType]:
    yield Text()
    if files := outcome.changed_files:
        shown = ", ".join(files[:_FILES])
        more = f" and {plural(len(files) - _FILES, 'more')}" if len(files) > _FILES else ""
        yield indented(Text(prose(f"files that differ: {shown}{more}"), QUIET))
    for text in (*outcome.notes, *method(outcome)):
        yield indented(Text(prose(text), QUIET))
