"""What every format says in the same words."""

from __future__ import annotations

from collections.abc import Iterator

from tdiag.gate.outcome import CounterChange, Outcome, StepChange
from tdiag.model.comparison import Change
from tdiag.units import count, duration, percent, size

TITLES = {"pass": "Pass", "regressed": "Regressed", "inconclusive": "Inconclusive"}


def title(outcome: Outcome) -> str:
    """``Regressed``; ``Pass: faster`` for what is an improvement, ``Pass, time not judged`` where
    the counters alone decided."""
    if outcome.verdict == "pass" and outcome.step is None:
        return "Pass, time not judged"
    return "Pass: faster" if outcome.improved else TITLES[outcome.verdict]


def summary(outcome: Outcome) -> str:
    """One sentence: the most decisive reason, or what was found not to be the case."""
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
    """What is known of the time where something else decided."""
    step = outcome.step
    if step is None:
        return f"; step time not compared: {outcome.why_no_step}"
    if outcome.verdict != "regressed" or step.answer == "slower":
        return ""
    return f"; step time {step.ratio - 1:+.1%}{', undecided' if step.answer == 'unclear' else ''}"


def interval(step: StepChange) -> str:
    """``+4.1% [+2.9%, +5.5%]`` of the typical step."""
    return f"{step.ratio - 1:+.1%} [{step.low - 1:+.1%}, {step.high - 1:+.1%}]"


def mean_interval(step: StepChange) -> str:
    """The same of the mean step."""
    return f"{step.mean_ratio - 1:+.1%} [{step.mean_low - 1:+.1%}, {step.mean_high - 1:+.1%}]"


def advice(outcome: Outcome) -> Iterator[str]:
    """What to do about it, where something is to be done."""
    if outcome.improved:
        yield (
            "faster by more than the threshold: keep the win with --update where a baseline is"
            " stored"
        )
    if outcome.settle:
        yield outcome.settle


def method(outcome: Outcome) -> Iterator[str]:
    """How the figures came about."""
    if step := outcome.step:
        yield (
            f"{step.how}; clean steps only; interval 95% over all looks, rank test p ="
            f" {step.p_slower:.2g}"
        )
    yield "work is counted in short profiled windows"


def value(row: Change | CounterChange, number: float) -> str:
    """A number in its row's unit."""
    if row.unit == "ns":
        return duration(number)
    return size(number) if row.unit == "bytes" else count(number)
