"""The verdict, and what it is put down to."""

from __future__ import annotations

import pytest

from tdiag.gate.check_document import advice, summary, title
from tdiag.gate.counters import TORCH_CALLS, Counter, LineCount
from tdiag.gate.judge import Measured, judge
from tdiag.gate.outcome import Verdict
from tdiag.model.place import Place

from .building import ITEM, ROOT, case, finding, item_lines, measured


@pytest.mark.parametrize(
    ("ratio", "half", "verdict", "code"),
    [
        (1.08, 0.02, "regressed", 1),
        (1.06, 0.02, "inconclusive", 3),
        (1.00, 0.02, "pass", 0),
        (0.90, 0.02, "pass", 0),
    ],
)
def test_only_time_beyond_doubt_beyond_the_threshold_fails(
    ratio: float, half: float, verdict: Verdict, code: int
) -> None:
    outcome = judge(case(measured(ratio, half)))
    assert (outcome.verdict, outcome.exit_code) == (verdict, code)
    assert outcome.improved == (ratio < 0.95)
    assert bool(outcome.settle) == (verdict == "inconclusive")
    assert bool(outcome.reasons) == (verdict != "pass")


def test_a_counter_that_grew_fails_whatever_the_time_says() -> None:
    outcome = judge(case(measured(0.9), before=0, now=4096))
    assert outcome.verdict == "regressed" and not outcome.improved
    assert outcome.reasons == ("loss.py:42 makes 4,096 more .item() calls a step (0 → 4,096)",)


@pytest.mark.parametrize(
    ("step", "beside"),
    [
        (measured(1.024, 0.03), "; step time +2.4%, undecided"),
        (measured(1.0), "; step time +0.0%"),
        (None, "; step time not compared: not comparable"),
    ],
)
def test_the_headline_names_what_decided(step: Measured | None, beside: str) -> None:
    """An undecided time is no reason of what the counters decided."""
    outcome = judge(case(step, now=2))
    assert outcome.verdict == "regressed"
    assert summary(outcome) == f"loss.py:42 makes 2 more .item() calls a step (0 → 2){beside}"
    assert len(outcome.reasons) == 1 and not outcome.settle


def test_a_time_that_decided_comes_first() -> None:
    outcome = judge(case(measured(1.2), now=2))
    assert outcome.reasons[0].startswith("step time +20.0%") and len(outcome.reasons) == 2
    assert summary(outcome) == outcome.reasons[0]


def test_one_more_is_in_the_singular() -> None:
    told = case(measured(1.0))
    lines = {text: LineCount(text, 1, Place(str(ROOT / "train.py"), 6)) for text in ("a", "b")}
    told.before.counters[TORCH_CALLS] = Counter(TORCH_CALLS, "count", 9, 9)  # type: ignore[index]
    told.now.counters[TORCH_CALLS] = Counter(TORCH_CALLS, "count", 11, 11, lines)  # type: ignore[index]
    assert judge(told).reasons == ("train.py:6 makes 1 more torch call a step (0 → 1)",)


def test_a_counter_that_shrank_is_told_and_fails_nothing() -> None:
    outcome = judge(case(measured(1.0), before=4096, now=0))
    assert outcome.verdict == "pass"
    (counter,) = outcome.counters
    assert not counter.failing and (counter.before, counter.now) == (4096, 0)
    assert counter.lines[0].place is None  # the line is gone


def test_one_more_per_step_is_a_line_of_logging() -> None:
    assert judge(case(measured(1.0), before=0, now=1)).counters == ()
    assert judge(case(measured(1.0), before=1000, now=1050)).counters == ()
    assert judge(case(measured(1.0), before=1000, now=1052)).verdict == "regressed"


def test_a_line_in_the_diff_is_marked() -> None:
    outcome = judge(case(measured(1.0), before=0, now=64, changed=["loss.py"]))
    assert outcome.counters[0].lines[0].in_diff


def test_lines_are_known_by_their_text_not_their_number() -> None:
    told = case(measured(1.0))
    told.before.counters.update(item_lines(64, line=10))  # type: ignore[attr-defined]
    told.now.counters.update(item_lines(64, line=99))  # type: ignore[attr-defined]
    assert judge(told).counters == ()


def test_few_slow_steps_are_told_as_such() -> None:
    outcome = judge(case(measured(1.0, mean=1.3)))
    assert outcome.verdict == "regressed"
    assert "few steps became slow" in outcome.reasons[0]


def test_without_a_comparable_time_the_counters_decide() -> None:
    assert judge(case(None)).verdict == "pass"
    assert judge(case(None, now=64)).verdict == "regressed"
    outcome = judge(case(None, settle="fetch it"))
    assert title(outcome) == "Pass, time not judged"
    assert summary(outcome).endswith("step time not compared: not comparable")
    assert list(advice(outcome)) == ["fetch it"]


def test_what_regressed_is_shown_by_component_and_new_finding() -> None:
    found = [finding("TD501"), finding("TD301")]
    outcome = judge(case(measured(1.2), now_findings=found))
    assert outcome.components[0].name == "loss"
    assert outcome.components[0].difference == 1e6
    assert [f.code for f in outcome.findings] == ["TD501"]
    # A rule near its threshold comes and goes: no news where nothing regressed.
    assert judge(case(measured(1.0), now_findings=found)).findings == ()


def test_a_range_has_moved_only_where_the_ranges_lie_apart() -> None:
    told = case(measured(1.0))
    told.before.counters[ITEM].low, told.before.counters[ITEM].high = 10, 100
    told.now.counters[ITEM].low, told.now.counters[ITEM].high = 90, 300
    assert judge(told).counters == ()
    told.now.counters[ITEM].low = 110
    assert judge(told).verdict == "regressed"
