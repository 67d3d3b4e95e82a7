"""The outcome of a check, from its measurements and counts."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tdiag
from tdiag.duel.estimate import Answer, Estimate, Ratios
from tdiag.gate.counters import Counter, Moved, compare
from tdiag.gate.outcome import CounterChange, LineChange, Outcome, StepChange, Verdict
from tdiag.model.comparison import Difference
from tdiag.model.diagnosis import MINOR_FRAC, Diagnosis, Finding
from tdiag.model.place import Place
from tdiag.report.text import relative
from tdiag.units import change_interval, count, duration, percent, plural, size

MOST_LINES = 5  # of a counter; usually the first explains it


@dataclass(frozen=True)
class Measured:
    """The step's time on both sides; ``turns``: of each side in total."""

    ratios: Ratios
    before_ns: float
    now_ns: float
    turns: int
    how: str
    stored_ns: float | None = None  # as in StepChange


@dataclass(frozen=True)
class SideCounts:
    """The facts of one side apart from its step time. ``root``: its files are named relative to it.
    ``rules``: codes that fire, with a measured cost. ``components_ns``: of the clean step."""

    root: Path
    counters: Mapping[str, Counter]
    rules: frozenset[str]
    components_ns: Mapping[str, float] = field(default_factory=dict)
    start_ns: Sequence[float] = ()
    peak_bytes: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is judged. ``step`` None: its time was not compared, ``why_no_step`` says why.
    ``changed``: files that differ between the sides, relative to their roots; ``settle``: what
    would decide an open question of time ("": more groups); ``now_findings``: of the current
    side."""

    command: str
    against: str
    threshold: float
    tolerance: float
    before: SideCounts
    now: SideCounts
    step: Measured | None = None
    why_no_step: str = ""
    settle: str = ""
    now_findings: Sequence[Finding] = ()
    changed: Sequence[str] = ()
    notes: Sequence[str] = ()
    machine: str = ""


def judge(case: Case) -> Outcome:
    """The verdict: regressed if the whole interval of the step's ratio lies beyond the threshold or
    a counter grew beyond the tolerance; inconclusive if only the time is undecided."""
    answer: Answer = case.step.ratios.answer(case.threshold) if case.step else "same"
    moved = compare(case.before.counters, case.now.counters, case.tolerance)
    counters = tuple(_counter(m, case) for m in moved)
    failing = [c for c in counters if c.failing]
    # A counter without a line is only the sum of the lines.
    named = [c for c in failing if c.lines] or failing
    verdict: Verdict = "pass"
    if answer == "slower" or failing:
        verdict = "regressed"
    elif answer == "unclear":
        verdict = "inconclusive"
    # An undecided time is not a reason for a regression that the counters decided.
    of_time = () if failing and answer == "unclear" else _of_time(case, answer)
    reasons = [*of_time, *(_of_counter(c, case.now.root) for c in named)]
    new = [f for f in case.now_findings if f.code not in case.before.rules]
    reported = verdict == "regressed"  # a rule near its threshold comes and goes by chance
    return Outcome(
        verdict=verdict,
        command=case.command,
        against=case.against,
        threshold=case.threshold,
        tolerance=case.tolerance,
        reasons=tuple(reasons),
        step=_step(case.step, answer) if case.step else None,
        why_no_step=case.why_no_step,
        components=_components(case.before.components_ns, case.now.components_ns),
        side_costs=tuple(_side_costs(case)),
        counters=counters,
        findings=tuple(new) if reported else (),
        changed_files=tuple(case.changed),
        improved=answer == "faster" and not failing,
        settle=_settle(case) if verdict == "inconclusive" or not case.step else "",
        notes=tuple(case.notes),
        machine=case.machine,
        tdiag=tdiag.__version__,
    )


def findings_of(diagnosis: Diagnosis) -> list[Finding]:
    """The findings with a measured cost."""
    return [found for found in diagnosis.findings if found.speedup is not None]


def _change(found: Estimate) -> str:
    return change_interval(found.ratio, found.low, found.high)


def _of_time(case: Case, answer: Answer) -> Iterable[str]:
    step = case.step
    if step is None:
        return
    typical, mean, limit = step.ratios.typical, step.ratios.mean, percent(case.threshold)
    times = f"{duration(step.before_ns)} → {duration(step.now_ns)}"
    if answer == "slower" and typical.answer(case.threshold) == "slower":
        yield f"step time {_change(typical)}, {times}; allowed is +{limit}"
    elif answer == "slower":
        few = typical.answer(case.threshold) == "same"
        yield (
            f"mean step time {_change(mean)}, the typical step's {_change(typical)}"
            f"{': few steps became slow' if few else ''}; allowed is +{limit}"
        )
    elif answer == "unclear":
        yield (
            f"step time {_change(typical)}, {times}: too noisy to decide whether that is more"
            f" than the +{limit} allowed"
        )


def _of_counter(counter: CounterChange, root: Path) -> str:
    """``loss.py:42 makes 4,096 more .item() calls a step (0 → 4,096)``."""
    shown = size if counter.unit == "bytes" else count
    whole = f"{counter.what}: {shown(counter.now)}, was {shown(counter.before)}"
    first = next((line for line in counter.lines if line.place), None)
    if first is None or first.place is None:
        return whole
    where = f"{relative(first.place.file, root)}:{first.place.line}"
    more = count(first.now - first.before)
    what = f"{counter.name} calls" if counter.name.endswith(")") else counter.name
    if more == "1":
        what = re.sub(r"(call|tensor|print|synchronisation)s\b", r"\1", what, count=1)
    return f"{where} makes {more} more {what} a step ({count(first.before)} → {count(first.now)})"


def _counter(moved: Moved, case: Case) -> CounterChange:
    lines = [
        LineChange(
            text=line.key, place=line.place, before=was, now=line.per_step,
            in_diff=_in_diff(line.place, case),
        )
        for line, was in moved.lines[:MOST_LINES]
    ]  # fmt: skip
    return CounterChange(
        name=moved.name, unit=moved.unit, before=moved.before, now=moved.now,
        failing=moved.grew, lines=tuple(lines),
    )  # fmt: skip


def _in_diff(place: Place | None, case: Case) -> bool:
    return place is not None and relative(place.file, case.now.root) in case.changed


def _step(step: Measured, answer: Answer) -> StepChange:
    typical, mean = step.ratios.typical, step.ratios.mean
    return StepChange(
        answer=answer,
        before_ns=step.before_ns, now_ns=step.now_ns, ratio=typical.ratio, low=typical.low,
        high=typical.high, p_slower=typical.p_slower, mean_ratio=mean.ratio, mean_low=mean.low,
        mean_high=mean.high, groups=typical.groups, turns=step.turns, how=step.how,
        stored_ns=step.stored_ns,
    )  # fmt: skip


def _components(before: Mapping[str, float], now: Mapping[str, float]) -> tuple[Difference, ...]:
    if not before or not now:
        return ()
    least = MINOR_FRAC * max(sum(before.values()), sum(now.values()))
    changes = [
        Difference(name, "ns", before.get(name, 0.0), now.get(name, 0.0))
        for name in {**before, **now}
    ]  # fmt: skip
    listed = [c for c in changes if max(c.before, c.after) >= least]
    return tuple(sorted(listed, key=lambda c: -abs(c.difference)))


def _side_costs(case: Case) -> Iterable[Difference]:
    before, now = case.before, case.now
    if before.start_ns and now.start_ns:
        values = statistics.median(before.start_ns), statistics.median(now.start_ns)
        yield Difference("start to warm", "ns", *values)
    if before.peak_bytes and now.peak_bytes:
        values = statistics.median(before.peak_bytes), statistics.median(now.peak_bytes)
        yield Difference("peak memory", "bytes", *values)


def _settle(case: Case) -> str:
    """What would decide an open question."""
    if case.settle or not case.step:
        return case.settle
    more = case.step.ratios.typical.more_groups(case.threshold)
    if more is None:
        return "more runs would not decide it: choose another --max-regression"
    return (
        f"about {plural(more, 'more group')} of fresh processes would decide it: raise --groups, or"
        " use a quieter machine"
    )
