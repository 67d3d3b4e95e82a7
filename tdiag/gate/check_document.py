"""The document of a check or of two compared runs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tdiag.gate.outcome import CounterChange, Outcome, StepChange
from tdiag.model.comparison import ChangeTable, Difference
from tdiag.model.notes import Note
from tdiag.report.document import (
    Annotation,
    AnnotationRule,
    Block,
    Cell,
    Column,
    Document,
    Headline,
    Level,
    Line,
    Section,
    Table,
    Tone,
)
from tdiag.report.of_comparison import change_table
from tdiag.report.of_finding import finding_annotation, item
from tdiag.units import change_interval, count, duration, percent, plural, size

TITLES = {"pass": "Pass", "regressed": "Regressed", "inconclusive": "Inconclusive"}
TONES: dict[str, Tone] = {"pass": "good", "regressed": "bad", "inconclusive": "unsure"}
LEVELS: dict[str, Level] = {"pass": "note", "regressed": "error", "inconclusive": "warning"}
SIGNS = {"pass": "✓", "regressed": "●", "inconclusive": "?"}
STEP_TIME = AnnotationRule(id="step-time", name="step-time", text="The training step takes longer")
WORK = AnnotationRule(id="work-counter", name="work-counter", text="A step does more work")
NEW = AnnotationRule(
    id="new-finding", name="new-finding", text="A rule of tdiag fires that did not before"
)
_FILES = 5  # files of the diff to name; the rest are counted


def document(outcome: Outcome) -> Document:
    """The verdict and its reason, what changed where, and how it was measured."""
    plain = msgspec.to_builtins(outcome, enc_hook=str)
    return Document(
        name="tdiag check",
        title=f"{outcome.command} against {outcome.against}",
        data={**plain, "exit_code": outcome.exit_code},
        headline=_headline(outcome),
        sections=tuple(_sections(outcome)),
        annotations=tuple(_annotations(outcome)),
        notes=tuple(_notes(outcome)),
        version=outcome.tdiag,
    )


def _headline(outcome: Outcome) -> Headline:
    slower = outcome.step is not None and outcome.step.answer == "slower"
    reported = outcome.verdict == "inconclusive" or (outcome.verdict == "regressed" and slower)
    return Headline(
        title=title(outcome),
        aside=f"{outcome.command} against {outcome.against}",
        tone=TONES[outcome.verdict],
        sign=SIGNS[outcome.verdict],
        level=LEVELS[outcome.verdict],
        lines=(
            Line(summary(outcome)),
            *(Line(f"also {reason}") for reason in outcome.reasons[1:]),
            *(Line(text, tone="accent") for text in advice(outcome)),
        ),
        brief=f"{title(outcome)}: {summary(outcome)}",
        rule=STEP_TIME if reported else None,
    )


def _sections(outcome: Outcome) -> Iterator[Section]:
    if outcome.step or outcome.side_costs:
        yield Section(id="step", title="Step time", blocks=(_step(outcome),))
    if parts := outcome.components:
        longest = max(sum(c.before for c in parts), sum(c.after for c in parts))
        table = change_table(ChangeTable(title="Budget", rows=parts), longest)
        yield Section(id="components", title="Where the step's time goes", blocks=(table,))
    if outcome.counters:
        yield Section(id="work", title="Work per step", blocks=tuple(_work(outcome)))
    if outcome.findings:
        blocks = tuple(item(found) for found in outcome.findings)
        yield Section(id="new", title="Found now but not before", blocks=blocks)


def _notes(outcome: Outcome) -> Iterator[Note]:
    if files := outcome.changed_files:
        shown = ", ".join(files[:_FILES])
        more = f" and {plural(len(files) - _FILES, 'more')}" if len(files) > _FILES else ""
        yield Note("changed-files", f"files that differ: {shown}{more}")
    yield from (Note("check", text) for text in (*outcome.notes, *method(outcome)))


def _step(outcome: Outcome) -> Table:
    rows = []
    if step := outcome.step:
        times = duration(step.before_ns), duration(step.now_ns)
        rows.append(("typical step", *times, interval(step)))
        rows.append(("mean step", "", "", mean_interval(step)))
    rows += [
        (cost.name, value(cost, cost.before), value(cost, cost.after), "")
        for cost in outcome.side_costs
    ]
    columns = (Column("", "end"), Column("before"), Column("now"), Column("change"))
    cells = tuple(tuple(Cell(text) for text in row) for row in rows)
    return Table(title="", columns=columns, rows=cells)


def _work(outcome: Outcome) -> Iterator[Block]:
    rows = tuple(Difference(c.name, c.unit, c.before, c.now) for c in outcome.counters)
    yield change_table(ChangeTable(title="counter", rows=rows), 0.0)
    lines = [
        (
            Cell("", place=line.place) if line.place else Cell("gone"),
            Cell(counter.name),
            Cell(value(counter, line.before), line.before),
            Cell(value(counter, line.now), line.now),
            Cell("in the diff" if line.in_diff else ""),
            Cell(line.text.rpartition(": ")[2]),
        )
        for counter in outcome.counters
        for line in counter.lines
    ]
    if lines:
        columns = (Column("line", "start"), Column("counter", "end"), Column("before"),
                   Column("now"), Column("", "end"), Column("", "end"))  # fmt: skip
        yield Table(title="", columns=columns, rows=tuple(lines), what="line")


def _annotations(outcome: Outcome) -> Iterator[Annotation]:
    for counter in outcome.counters:
        places = tuple(
            (line.place, f"{value(counter, line.before)} → {value(counter, line.now)}")
            for line in counter.lines
            if line.place
        )
        numbers = f"{value(counter, counter.before)} → {value(counter, counter.now)}"
        yield Annotation(
            rule=WORK,
            level="error" if counter.failing else "passed",
            title=f"{counter.what}: {numbers}",
            places=places,
            name=counter.what,
        )
    for found in outcome.findings:
        note = finding_annotation(found, None)
        yield Annotation(
            rule=NEW, level="warning", title=f"{note.name}: {note.title}", lines=note.lines,
            places=note.places, name=note.name,
        )  # fmt: skip


def title(outcome: Outcome) -> str:
    """``Regressed``; ``Pass: faster`` for an improvement; ``Pass, time not judged`` if only the
    counters decided."""
    if outcome.verdict == "pass" and outcome.step is None:
        return "Pass, time not judged"
    return "Pass: faster" if outcome.improved else TITLES[outcome.verdict]


def summary(outcome: Outcome) -> str:
    """One sentence: the most decisive reason; without one, what was measured and is within the
    limits."""
    if outcome.reasons:
        return outcome.reasons[0] + _beside(outcome)
    step, limit = outcome.step, percent(outcome.threshold)
    if step is None:
        return f"no work counter grew by more than {percent(outcome.tolerance)}{_beside(outcome)}"
    times = f"{duration(step.before_ns)} → {duration(step.now_ns)}"
    if outcome.improved:
        return f"step time {interval(step)}, {times}"
    return f"step time {interval(step)}, {times}; within the +{limit} allowed"


def _beside(outcome: Outcome) -> str:
    """The step time, if something else decided."""
    step = outcome.step
    if step is None:
        return f"; step time not compared: {outcome.why_no_step}"
    if outcome.verdict != "regressed" or step.answer == "slower":
        return ""
    return f"; step time {step.ratio - 1:+.1%}{', undecided' if step.answer == 'unclear' else ''}"


def interval(step: StepChange) -> str:
    """``+4.1% [+2.9%, +5.5%]`` of the typical step."""
    return change_interval(step.ratio, step.low, step.high)


def mean_interval(step: StepChange) -> str:
    """The same for the mean step."""
    return change_interval(step.mean_ratio, step.mean_low, step.mean_high)


def advice(outcome: Outcome) -> Iterator[str]:
    """What to do, if anything."""
    if outcome.improved:
        yield ("faster by more than the threshold: store the new baseline with --update")
    if outcome.settle:
        yield outcome.settle


def method(outcome: Outcome) -> Iterator[str]:
    """How the numbers were measured."""
    if step := outcome.step:
        yield (
            f"{step.how}; clean steps only; 95% interval over all interim tests, rank test p ="
            f" {step.p_slower:.2g}"
        )
    yield "work is counted in short profiled windows"


def value(row: Difference | CounterChange, number: float) -> str:
    """A number in its row's unit."""
    if row.unit == "ns":
        return duration(number)
    return size(number) if row.unit == "bytes" else count(number)
