"""What every format says of the gains."""

from __future__ import annotations

import json

import msgspec
import pytest

from tdiag.model.diagnosis import Component, Diagnosis, Finding, Speedup
from tdiag.report.summary import best, why
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


@pytest.mark.parametrize("format", ["terminal", "html", "markdown", "json"])
def test_every_format_says_what_all_fixes_win(format: str) -> None:
    both = run(fix(30, "data_wait"), fix(20, "data_wait"))
    assert "together" not in render("terminal", both)
    shown = render(format, msgspec.structs.replace(both, together=Speedup(1.165, 1.667)))
    if format == "json":
        assert json.loads(shown)["together"] == {"low": 1.165, "high": 1.667}
    else:
        assert "All 2 together 1.17–1.67× faster: overlapping savings are counted once." in shown


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
