"""Rows 3 and 3a of docs/verdict.md: computing against wastes, of which some are sure."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.verdict import GUESS_CONFIDENCE
from tdiag.evidence.steps import Steps
from tdiag.model.diagnosis import Finding
from tdiag.rules.examples import MS, at, flags, phases
from tests.diagnose.test_verdict import TRACED, finding, run, work

SURE = finding("python_loss", 0.12, high=0.16)


def test_it_is_the_verdict_with_computing_as_the_runner_up() -> None:
    found = run({"loss": 20, "backward": 40}, findings=(SURE,))
    assert (found.cls, found.share, found.runner_up) == ("python_loss", 0.16, "compute")
    assert found.confidence > 0.8  # the computing is no rival of what is surely lost
    assert found.summary.startswith("16% of the step goes to Python control flow in the loss")
    assert "next: computing (84%)" in found.summary


@pytest.mark.parametrize(
    "findings",
    [
        (finding("python_loss", 0.1, high=0.16),),
        (finding("cpu", 0.12, high=0.16),),
        (finding("h2d", 0.12, high=0.16),),
        (replace(SURE, advisory=True),),
        (replace(SURE, speedup=None),),
        (finding("compute", 0.2), SURE),
    ],
    ids=["maybe", "data", "copies", "advisory", "no range", "second"],
)
def test_otherwise_the_step_computes(findings: tuple[Finding, ...]) -> None:
    parts = {"loss": 20, "data_wait_cpu": 16, "h2d": 16}
    assert run(parts, findings=findings).cls == "compute"


def test_calls_that_do_no_work_cost_more() -> None:
    """Row 4a: 20,000 calls, and their arithmetic takes a tenth of the step."""
    found = run({"loss": 20}, work(10e6, calls=20_000), findings=(SURE,))
    assert (found.cls, found.runner_up) == ("overhead", "compute")
    assert run({"loss": 20}, work(70e6, calls=20_000), findings=(SURE,)).cls == "python_loss"


def test_computing_is_compared_by_the_high_end_of_its_finding() -> None:
    """As are the classes that only a finding measures."""
    for high, cls in ((0.35, "compute"), (0.28, "eval")):
        lead = finding("compute", 0.2, high=high)
        assert run({"evaluation": 30}, findings=(lead,)).cls == cls


def test_computing_wins_a_tie_with_what_only_a_finding_tells_of() -> None:
    """And of what the budget shows only what costs more."""
    lead = finding("compute", 0.3, high=0.5)
    for high, cls in ((0.65, "compute"), (0.7, "overhead")):
        assert run({"loss": 10}, findings=(lead, finding("overhead", 0.0, high=high))).cls == cls
    assert run({"evaluation": 51}, findings=(lead,)).cls == "eval"


def test_a_bare_trace_keeps_its_threshold() -> None:
    """The profiler slows what Python does."""
    bare = run({"loss": 20}, TRACED, findings=(SURE,), without=(Steps,))
    assert bare.cls != "python_loss"


@pytest.mark.parametrize(
    ("drawn", "calls", "cls"),
    [("gymnasium", 1, "rollout"), ("", 1, "cpu"), ("", 7.9, "cpu"), ("", 8, "rollout")],
)
def test_what_lies_between_actions_is_the_rollouts_if_an_agent_acts(
    drawn: str, calls: float, cls: str
) -> None:
    """Two calls of a teacher without gradients look the same; ``calls``: of the trained model."""
    clean = replace(phases(prepare=60, forward=40), learners_acts=calls)
    between = replace(clean, cpu_ns={"prepare": 58 * MS}, rolls_out=True)
    assert run({"prepare": 60}, between, flags(agent_library=drawn)).cls == cls


def test_a_line_that_takes_most_of_the_time_before_the_forward_is_no_guess() -> None:
    """40 % of a step that makes its batches by hand; circumstance alone must be most of it."""
    parts: dict[str, float] = {"prepare": 40}
    made = replace(phases(forward=60, prepare=40), cpu_ns={"prepare": 38 * MS})
    named = replace(finding("cpu", 0.3, high=0.5), location=at(14), components=("prepare",))
    assert run(parts, made, findings=(named,)).cls == "cpu"
    assert run(parts, made, findings=(named,)).confidence > GUESS_CONFIDENCE
    for less in (
        replace(named, location=None),
        replace(named, recoverable_ns=round(15 * MS)),  # of 40 ms
        replace(named, components=("data_wait_cpu",)),
    ):
        assert run(parts, made, findings=(less,)).cls == "compute"


def test_what_else_data_is_awaited_for_has_words_of_its_own() -> None:
    """Batches that are handed over slowly, beside preprocessing."""
    more = run({"data_wait": 20, "data_wait_cpu": 40})
    assert more.summary.startswith("60% of the step waits for data: 40% for preprocessing")
    assert "next: waiting for data otherwise (20%)" in more.summary
    less = run({"data_wait": 40, "data_wait_cpu": 20})
    assert "40% neither for storage nor for preprocessing; next: waiting for pre" in less.summary
