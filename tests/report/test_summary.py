"""What several fixes win together: never the sum of what each wins alone."""

from __future__ import annotations

import msgspec
import pytest

from tdiag.model.diagnosis import Component, Diagnosis, Finding, Speedup
from tdiag.report.summary import best, together, why
from tdiag.units import duration

from .building import MS, render
from .samples import IO_BOUND

FIX = next(found for found in IO_BOUND.findings if not found.advisory)


def fix(ms: float, *components: str) -> Finding:
    return msgspec.structs.replace(FIX, recoverable_ns=round(ms * MS), components=components)


def run(*findings: Finding) -> Diagnosis:
    parts = {"data_wait": 60, "forward": 10, "backward": 20, "other": 10}
    budget = tuple(Component(name, ms * MS) for name, ms in parts.items())
    return msgspec.structs.replace(IO_BOUND, budget=budget, findings=findings)


def test_overlapping_savings_count_once() -> None:
    """Each fix wins its share of what the ones before it left, so the waste never runs out."""
    found = run(fix(30, "data_wait"), fix(45, "data_wait"), fix(7, "data_wait", "other"))
    wait = 60 / 2 / 4
    assert together(found) == pytest.approx(100 / (30 + (wait + 10) * 0.9))
    assert together(run(fix(60, "data_wait"), fix(70, "data_wait"))) == pytest.approx(100 / 40)


def test_one_fix_alone_is_not_summed_up() -> None:
    assert together(run(fix(55, "data_wait"))) is None
    assert "together" not in render("terminal", run(fix(55, "data_wait")))


@pytest.mark.parametrize("format", ["terminal", "html"])
def test_the_report_says_so_below_the_findings(format: str) -> None:
    shown = render(format, run(fix(30, "data_wait"), fix(20, "data_wait")))
    assert "All 2 together about 1.7× faster: overlapping savings are counted once." in shown


def test_a_fix_that_may_lose_says_how_much() -> None:
    lost = msgspec.structs.replace(FIX, speedup=Speedup(1 / 1.02, 2.0), why_gain="a guess.")
    assert IO_BOUND.step
    half, cost = IO_BOUND.step.mean_ns / 2, IO_BOUND.step.mean_ns * 0.02
    told = f"Saves up to {duration(half)} a step, or costs up to {duration(cost)}. A guess."
    assert why(lost, IO_BOUND) == told
    surely = msgspec.structs.replace(lost, speedup=Speedup(1.0, 2.0))
    assert why(surely, IO_BOUND) == f"Saves up to {duration(half)} a step. A guess."


def test_a_fix_as_likely_to_cost_as_to_win_is_no_headline() -> None:
    likely, doubtful = fix(9, "data_wait"), fix(0, "data_wait")
    assert best(run(likely, doubtful)) == likely
    assert best(run(doubtful)) is None
