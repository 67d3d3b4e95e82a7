"""The report a person reads first: the verdict, where the step goes, and what to change."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from tdiag.model.diagnosis import Diagnosis, Finding
from tdiag.report.money import money
from tdiag.report.page import Page, heading
from tdiag.report.summary import (
    NO_SHARE,
    advisories,
    best,
    doubtful,
    doubts,
    failed,
    headline,
    ranked,
    unchecked,
    what_to_do,
)
from tdiag.report.terminal_budget import budget
from tdiag.report.terminal_findings import advice, findings
from tdiag.report.terminal_timeline import timeline
from tdiag.report.terminal_top import top
from tdiag.report.text import GLUE, clip, clip_head, code, inert, location, prose, relative
from tdiag.report.words import ACCENT, BAD, CODE, GOOD, HEAD, QUIET, WARN
from tdiag.units import disturbance, duration, faster, percent, plural

_MISSING_GROUPS = 6  # reasons listed under "could not check" unless all are asked for
_CLAUSE_CELLS = 110
_TOLD = {"baseline": "no profiler running", "trace": "traced, which slows its host"}
_CLAUSE_END = re.compile(r";|\n|, or |, with |\.(?=\s|$)")
_PLACE = re.compile(r"\w:\d+")  # a fix that names its place already: "… at train.py:41"


def render(diagnosis: Diagnosis, page: Page) -> str:
    """The whole report as text, each line at most ``page.width`` cells."""
    return page.draw(*_sections(diagnosis, page))


def _sections(diagnosis: Diagnosis, page: Page) -> Iterator[RenderableType]:
    yield Text()
    yield _verdict(diagnosis, page)
    if table := budget(diagnosis, page):
        yield from _section("Step time", _step(diagnosis), [table], page)
    if (drawn := diagnosis.timeline) and drawn.lanes and drawn.step_ns:
        told = _TOLD.get(drawn.source, inert(drawn.source, 40))
        title = "The median step along time" if drawn.steps else "The whole trace along time"
        yield from _section(title, told, [timeline(drawn, page)], page)
    if ranked(diagnosis):
        yield from _section("What to change", "largest win first", findings(diagnosis, page), page)
    if costs := money(diagnosis, page):
        yield from _section("Time and money", f"at {page.hourly_cost:g} an hour", [costs], page)
    if advisories(diagnosis):
        cost = "little or nothing to win" if diagnosis.verdict.healthy else "no measured cost"
        yield from _section("Worth knowing", cost, advice(diagnosis, page), page)
    if parts := top(diagnosis.top, page):
        yield from _section("Largest parts", "per traced step", [parts], page)
    if diagnosis.abstained and not _nothing_checked(diagnosis, page):
        n = plural(len(diagnosis.abstained), "check")
        yield from _section("Could not check", n, [_unchecked(diagnosis, page)], page)
    yield from _section("How it was measured", "", [_measured(diagnosis, page)], page)
    yield Text()


def _section(
    title: str, right: str, body: Iterable[RenderableType], page: Page
) -> Iterator[RenderableType]:
    yield from heading(title, right, page)
    yield from body


class _Barred:
    """What it holds, with a coloured bar along its left side."""

    def __init__(self, body: RenderableType, color: str) -> None:
        self.body = body
        self.color = Style.parse(color)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        inner = options.update_width(options.max_width - 4)
        for line in console.render_lines(self.body, inner, pad=False):
            yield Segment(" ▌ ", self.color)
            yield from line
            yield Segment.line()


def _verdict(diagnosis: Diagnosis, page: Page) -> RenderableType:
    """What it is, how much of the step, what the best fix can win, and where."""
    verdict = diagnosis.verdict
    sign, color = ("✓", GOOD) if verdict.healthy else ("●", BAD)
    if verdict.cls in NO_SHARE:
        sign, color = "?", WARN
    elif doubtful(verdict):
        sign, color = "○", WARN
    title, share = headline(verdict)
    head = Text.assemble((f"{sign} {title}", f"bold {color}"))
    if share:
        head.append(f": {share}", HEAD)
    sure = _confidence(diagnosis)
    gap = page.width - 4 - head.cell_len - len(sure)
    head.append(" " * gap if gap > 0 else "\n")
    head.append(sure, QUIET)
    lines: list[RenderableType] = [head, code(verdict.summary, CODE)]
    if doubtful(verdict):
        lines.append(Text.assemble(("Not sure: ", HEAD), prose(doubts(diagnosis))))
    if verdict.healthy:
        lines.append(Text("Nothing needs changing.", f"bold {GOOD}"))
    elif fix := best(diagnosis):
        lines.append(_best(fix, page, "Possible fix" if doubtful(verdict) else "Best fix"))
    if verdict.cls == "unknown":
        lines.extend(_what_to_do(diagnosis, page))
    return _Barred(Group(*lines), color)


def _confidence(diagnosis: Diagnosis) -> str:
    verdict = diagnosis.verdict
    if verdict.cls in NO_SHARE:
        return ""
    other = f", runner-up {inert(verdict.runner_up, 20)}" if verdict.runner_up else ""
    sure = percent(verdict.confidence)
    return f"low confidence ({sure}){other}" if doubtful(verdict) else f"{sure} sure{other}"


def _best(fix: Finding, page: Page, label: str) -> Text:
    """The top fix's first clause, its place and its gain; the finding below says the rest."""
    assert fix.speedup is not None  # best() chose it for that
    clause = _CLAUSE_END.split(fix.fix.text.strip(), maxsplit=1)[0]
    text = Text.assemble((f"{label}: ", HEAD), code(clip(clause, _CLAUSE_CELLS), CODE))
    if fix.location and not _PLACE.search(clause):
        text.append(" at ")
        text.append_text(location(fix.location, page.base_dir, page.width - 20, ACCENT))
    gain = faster(fix.speedup.low, fix.speedup.high).replace(" ", GLUE)
    return text.append(f", predicted{GLUE}").append(f"{gain}{GLUE}faster", f"bold {GOOD}")


def _what_to_do(diagnosis: Diagnosis, page: Page) -> Iterator[RenderableType]:
    """For a run without a verdict: what was missing, and the next thing to try.

    What the summary says already is not said again."""
    said = diagnosis.verdict.summary
    yield from (code(note.text, CODE) for note in diagnosis.notes if note.text != said)
    for why, sources in failed(diagnosis).items():
        if why != said:
            yield Text.assemble(("Missing: ", HEAD), prose(f"{', '.join(sources)} ({why})"))
    if _nothing_checked(diagnosis, page):
        (why, codes), *_ = unchecked(diagnosis)
        because = "" if why == said else f": {why}"
        yield Text(prose(f"No check could be made (of {len(codes)}){because}."), QUIET)
    if need := what_to_do(diagnosis):
        yield Text.assemble(("What to do: ", HEAD), need)


def _nothing_checked(diagnosis: Diagnosis, page: Page) -> bool:
    """Whether no rule could be checked, all for one reason: then a line says it, not a section."""
    one_reason = len(unchecked(diagnosis)) == 1
    nothing = diagnosis.step is None and not diagnosis.findings
    return nothing and one_reason and not page.all_findings


def _step(diagnosis: Diagnosis) -> str:
    step = diagnosis.step
    if step is None:
        return ""
    times = (("mean", step.mean_ns), ("median", step.median_ns), ("p90", step.p90_ns))
    shown = " · ".join(f"{name} {duration(ns)}" for name, ns in times)
    return f"{shown} · {plural(step.count, 'step')}"


def _rows(rows: Iterable[tuple[str, RenderableType]]) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(Text(label, QUIET), value)
    return Padding(grid, (0, 1, 0, 2))


def _unchecked(diagnosis: Diagnosis, page: Page) -> RenderableType:
    ordered = unchecked(diagnosis)
    shown = ordered if page.all_findings else ordered[:_MISSING_GROUPS]
    lines: list[RenderableType] = [
        Text.assemble(prose(missing, 300), "  ", (" ".join(codes), QUIET))
        for missing, codes in shown
    ]
    if hidden := len(ordered) - len(shown):
        lines.append(Text(f"… {plural(hidden, 'more reason')} with --all", QUIET))
    return Padding(Group(*lines), (0, 1, 0, 2))


def _measured(diagnosis: Diagnosis, page: Page) -> RenderableType:
    return _rows(_measured_rows(diagnosis, page))


def _measured_rows(diagnosis: Diagnosis, page: Page) -> Iterator[tuple[str, RenderableType]]:
    captured = [k for k, v in diagnosis.capture.items() if v.state == "captured"]
    if captured:
        yield "captured", Text(prose(", ".join(captured)))
    for source, state in diagnosis.capture.items():
        if state.state == "partial":
            yield "in part", Text(prose(f"{source}: {state.why}"))
    if diagnosis.verdict.cls != "unknown":  # which says these first
        for why, sources in failed(diagnosis).items():
            yield "failed", Text.assemble((prose(", ".join(sources)), WARN), prose(f": {why}"))
    if slowed := diagnosis.perturbation:
        parts = (f"{inert(name)}{GLUE}{disturbance(frac)}" for name, frac in slowed.items())
        slower = f"{', '.join(parts)} on the steps they watched; the times above are without them"
        yield "profilers", Text(slower)
    if env := _environment(diagnosis.environment):
        yield "machine", Text(prose(env))
    if command := diagnosis.environment.get("command"):
        words = [str(w) for w in command] if isinstance(command, list | tuple) else [str(command)]
        yield "command", Text(prose(shlex.join(words)))
    if diagnosis.verdict.cls != "unknown":
        for note in diagnosis.notes:
            yield "note", code(note.text, CODE)
    if page.run_dir:
        shown = clip_head(inert(relative(str(page.run_dir), page.base_dir)), page.width - 16)
        yield "saved in", Text(shown, ACCENT)
        name = "" if page.latest else shlex.quote(relative(str(page.run_dir), page.base_dir))
        yield "again", Text(" ".join(filter(None, ("tdiag report", inert(name), "--all"))), CODE)


def _environment(env: dict[str, Any]) -> str:
    """The machine in one line; what is not known is left out."""
    parts = [f"{name} {env[name]}" for name in ("torch", "python", "tdiag") if env.get(name)]
    if device := env.get("device"):
        many = env.get("device_count") or 1
        parts.insert(0, f"{many} × {device}" if many > 1 else str(device))
    if (env.get("world_size") or 1) > 1:
        parts.append(f"rank {env.get('rank', 0)} of {env['world_size']}")
    parts += [str(env[name]) for name in ("platform", "hostname") if env.get(name)]
    return ", ".join(parts)
