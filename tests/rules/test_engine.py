"""The engine: what it injects, how it ranks, and that gains never add up to more than there is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import FREED_FRAC, RUNS_DIFFER_FRAC, rank, run_rule, run_rules
from tdiag.evidence.feeding import Inputs
from tdiag.evidence.steps import Budget, Phases, Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Flags
from tdiag.model.diagnosis import Abstained, Finding, Fix
from tdiag.model.place import Place
from tdiag.rules.base import Abstain, Found, Gain, ns, where
from tdiag.rules.catalogue import Rule, find, needs
from tdiag.rules.examples import MS, at, budget, phases

STEP = budget(data_wait=60, forward=10, backward=20, other=10)


Check = Callable[..., Found | None]


def rule(code: str, check: Check, only_if: str = "", **changed: Any) -> Rule:
    return dataclasses.replace(
        find("TD201"), code=code, name=code.lower(), check=check, only_if=only_if,
        **{"after": (), **changed},
    )  # fmt: skip


def test_a_cure_that_would_hide_another_cause_says_what_comes_first() -> None:
    hiding = rule("TD901", winning(30, 50, "data_wait"), after=(("TD902", "it only hides that"),))
    cause = rule("TD902", winning(2, 4, "data_wait"))
    evidence = Evidence().add(STEP)
    both, _ = run_rules(evidence, [hiding, cause])
    assert [found.fix.text for found in both] == [
        "Do it. First TD902 td902: it only hides that.",
        "Do it.",
    ]
    alone, _ = run_rules(evidence, [hiding])
    assert [found.fix.text for found in alone] == ["Do it."]


def winning(low_ms: float, high_ms: float, *components: str, at: Place | None = None) -> Check:
    def check(budget: Budget) -> Found:
        gain = Gain(low_ms * MS, high_ms * MS, "because.", components)
        return Found("Found.", (ns("time", 1, "baseline"),), Fix("Do it.", "safe"), gain, at)

    return check


def advising(budget: Budget) -> Found:
    return Found("Seen.", (ns("time", 1, "baseline"),), Fix("Consider it.", "safe"))


def only(result: Finding | Abstained | None) -> Finding:
    assert isinstance(result, Finding)
    return result


def test_the_signature_is_the_evidence_query() -> None:
    def check(budget: Budget, flags: Flags, phases: Phases | None) -> Found | None:
        return None

    assert needs(rule("TD900", check)) == {
        "budget": (Budget, True),
        "flags": (Flags, True),
        "phases": (Phases, False),
    }


def test_optional_evidence_is_none_and_required_evidence_abstains() -> None:
    seen: list[Phases | None] = []

    def check(budget: Budget, phases: Phases | None) -> Found | None:
        seen.append(phases)
        return None

    assert run_rule(rule("TD900", check), Evidence().add(STEP)) is None
    assert run_rule(rule("TD900", check), Evidence().add(STEP, phases(forward=1))) is None
    assert seen == [None, phases(forward=1)]
    lacking = Evidence(missing={Budget: "no step ended"})
    assert run_rule(rule("TD900", check), lacking) == Abstained("TD900", "td900", "no step ended")


def test_a_rule_may_abstain_for_a_field_and_a_faulty_rule_costs_only_itself() -> None:
    def lacking(budget: Budget) -> Found:
        raise Abstain("CPU time was not measured")

    def faulty(budget: Budget) -> Found:
        raise ZeroDivisionError("division by zero")

    rules = [rule("TD901", lacking), rule("TD902", faulty), rule("TD903", winning(5, 10, "other"))]
    findings, abstained = run_rules(Evidence().add(STEP), rules)
    assert [found.code for found in findings] == ["TD903"]
    assert [entry.missing for entry in abstained] == [
        "CPU time was not measured",
        "the rule itself failed: ZeroDivisionError: division by zero",
    ]


def test_speedups_follow_amdahl_and_the_middle_is_ranked() -> None:
    on_device = budget(device=True, data_wait=60, compute=40)
    found = only(run_rule(rule("TD900", winning(20, 50, "data_wait")), Evidence().add(on_device)))
    assert found.speedup is not None
    assert (found.speedup.low, found.speedup.high) == (1.25, 2.0)
    assert found.recoverable_ns == 35 * MS
    assert found.at_best_ns == 50 * MS


@pytest.mark.parametrize(("step_ms", "at_best_ms"), [(100, 50), (100, 10), (20, 6)])
def test_at_best_the_rest_of_a_step_has_the_machine_to_itself_and_nobody_watches_it(
    step_ms: float, at_best_ms: float
) -> None:
    step = budget(data_wait=at_best_ms, forward=step_ms - at_best_ms)
    found = only(run_rule(rule("TD900", winning(0, at_best_ms, "data_wait")), Evidence().add(step)))
    assert found.speedup is not None
    left = rest_at_best(step_ms, at_best_ms)
    assert found.speedup.high == pytest.approx(step_ms / left, abs=0.001)
    assert found.at_best_ns == pytest.approx(at_best_ms * MS)


def test_where_the_host_keeps_a_device_waiting_the_rest_is_that_of_another_run() -> None:
    """Half of the step goes. Of the other half no cache is freed, but the hooks go."""
    for launch_ms, left in ((40, 50.0), (60, 50 * (1 - RUNS_DIFFER_FRAC) - 0.04)):
        step = budget(device=True, launch=launch_ms, compute=100 - launch_ms)
        won = winning(0, 50, "launch", "compute")
        found = only(run_rule(rule("TD900", won), Evidence().add(step)))
        assert found.speedup is not None
        assert found.speedup.high == pytest.approx(100 / left, abs=0.001)


def rest_at_best(step_ms: float, gone_ms: float, error_ms: float = 0.0) -> float:
    """What is freed, what two runs differ by and the sampling error, in quadrature; the hooks."""
    rest = step_ms - gone_ms
    freed, differs = FREED_FRAC * rest * gone_ms / step_ms, min(RUNS_DIFFER_FRAC * rest, gone_ms)
    return rest - math.hypot(freed, differs, error_ms) - 0.04


@pytest.mark.parametrize(
    ("spread_ms", "quick_ms", "error_ms"),
    [(0.0, 70, 0.0), (2.5, 70, 0.49), (20.0, 70, 3.92), (20.0, 99, 1.0)],
    ids=["exact", "small", "large", "a few long steps"],
)
def test_what_stays_is_known_no_better_than_its_steps_agree(
    spread_ms: float, quick_ms: int, error_ms: float
) -> None:
    """Forward takes 10 ms, give or take the spread, in a hundred steps. At best what stays is 1.96
    standard errors shorter, but not shorter than most steps show; how much the wait for data
    varies, which goes, does not matter."""
    clean = replace(
        phases({"data_wait": 0.001}, data_wait=90, forward=10),
        covariance_ns2={
            "data_wait": {"data_wait": (80.0 * MS) ** 2, "forward": 0.0},
            "forward": {"data_wait": 0.0, "forward": (spread_ms * MS) ** 2},
        },
    )
    steps = Steps(
        durations_ns=(quick_ms * MS,) * 99 + (200 * MS,), mean_ns=100 * MS, median_ns=100 * MS,
        p90_ns=100 * MS, count=100, boundary="optimizer", total_steps_seen=100,
    )  # fmt: skip
    evidence = Evidence().add(budget(data_wait_cpu=90, forward=10), clean, steps)
    found = only(run_rule(rule("TD900", winning(0, 90, "data_wait_cpu")), evidence))
    assert found.speedup is not None
    left = rest_at_best(100, 90, error_ms)
    assert found.speedup.high == pytest.approx(100 / left, abs=0.02)


@pytest.mark.parametrize(
    ("low_ms", "high_ms", "advisory"), [(0, 4.9, True), (0, 5, False), (0.1, 4.9, False)]
)
def test_a_small_gain_that_may_be_none_is_an_advisory(
    low_ms: float, high_ms: float, advisory: bool
) -> None:
    """On a busy machine healthy trainings have such findings, and no verdict of health."""
    step = budget(data_wait=10, forward=90)
    gain = winning(low_ms, high_ms, "data_wait")
    found = only(run_rule(rule("TD900", gain), Evidence().add(step)))
    assert found.advisory is advisory


def test_a_gain_is_no_larger_than_its_components() -> None:
    found = only(run_rule(rule("TD900", winning(20, 90, "other", "nowhere")), Evidence().add(STEP)))
    assert found.recoverable_ns == 10 * MS
    assert found.components == ("other",)


def test_a_gain_that_no_trial_could_confirm_is_not_reported() -> None:
    evidence = Evidence().add(STEP)
    assert run_rule(rule("TD900", winning(0, 1.9, "other")), evidence) is None
    assert run_rule(rule("TD900", winning(0, 2.1, "other")), evidence) is not None
    assert run_rule(rule("TD900", winning(5, 9, "nowhere")), evidence) is None


def test_a_step_that_is_all_recoverable_keeps_a_finite_speedup() -> None:
    everything = Evidence().add(budget(data_wait=60))
    found = only(run_rule(rule("TD900", winning(60, 60, "data_wait")), everything))
    assert found.speedup is not None and found.speedup.high == pytest.approx(100)


def test_best_first_and_advisories_after_all_that_was_measured() -> None:
    rules = [
        rule("TD001", advising),  # about how well the model learns
        rule("TD901", advising),
        rule("TD902", winning(2, 4, "other")),
        rule("TD903", winning(30, 50, "data_wait")),
        rule("TD904", winning(2, 4, "forward")),
    ]
    findings, _ = run_rules(Evidence().add(STEP), rules)
    assert [found.code for found in findings] == ["TD903", "TD902", "TD904", "TD901", "TD001"]
    assert findings == rank(reversed(findings))


def test_a_cause_comes_before_the_cure_that_would_hide_it() -> None:
    hides = rule("TD901", winning(30, 50, "data_wait"), after=(("TD902", "it is only hidden"),))

    def order(cause: Check) -> list[str]:
        findings, _ = run_rules(Evidence().add(STEP), [hides, rule("TD902", cause)])
        return [found.code for found in findings]

    assert order(winning(20, 22, "data_wait")) == ["TD902", "TD901"]
    assert order(winning(18, 20, "data_wait")) == ["TD901", "TD902"], "it wins too little"
    assert order(winning(19, 21, "forward")) == ["TD901", "TD902"], "of other time"


def test_a_change_of_the_code_hides_only_what_the_code_there_does() -> None:
    """Cheaper sampling of negatives leaves the lists that another function makes of them."""
    after = (("TD902", "it may make the function cheap"),)
    cheaper = rule("TD901", winning(30, 50, "data_wait", at=at(42, "sample")), after=after)

    def order(place: Place) -> list[str]:
        lists = rule("TD902", winning(20, 22, "data_wait", at=place))
        findings, _ = run_rules(Evidence().add(STEP), [cheaper, lists])
        return [found.code for found in findings]

    assert order(at(44, "sample")) == ["TD902", "TD901"]
    assert order(at(50, "Pairs.__getitem__")) == ["TD901", "TD902"]


def test_a_healthy_statement_is_kept_only_if_little_is_to_be_won() -> None:
    healthy = rule("TD905", advising, only_if="clear")
    evidence = Evidence().add(STEP)
    advised, _ = run_rules(evidence, [healthy, rule("TD906", advising)])
    assert [found.code for found in advised] == ["TD905", "TD906"]
    minor, _ = run_rules(evidence, [healthy, rule("TD907", winning(2, 4, "other"))])
    assert [found.code for found in minor] == ["TD907", "TD905"]
    ranked, _ = run_rules(evidence, [healthy, rule("TD907", winning(2, 6, "other"))])
    assert [found.code for found in ranked] == ["TD907"]


def test_a_line_of_a_library_is_no_place_to_change_something() -> None:
    libraries = at(7, file="/venv/lib/python3.12/site-packages/transformers/models/gpt2.py")
    assert where(libraries) == ""
    rule = find("TD003")
    looked = rule.fires().get(Inputs)
    assert looked is not None
    tensors = tuple(replace(tensor, module_at=libraries) for tensor in looked.tensors)
    found = run_rule(rule, Evidence().add(Inputs(tensors=tensors)))
    assert isinstance(found, Finding) and found.location is None
    assert "gpt2.py" not in found.summary + found.fix.text
