"""From evidence to diagnosis: budget, rules, verdict."""

from __future__ import annotations

from typing import Any

import msgspec

from tdiag.diagnose.attached_verdict import of_watched
from tdiag.diagnose.budget import make_budget
from tdiag.diagnose.compile_report import make_compile_report
from tdiag.diagnose.costs import undisturbed
from tdiag.diagnose.efficiency import make_roofline
from tdiag.diagnose.engine import run_rules
from tdiag.diagnose.functions import divided
from tdiag.diagnose.line_classes import with_line_classes
from tdiag.diagnose.main_line import with_fetch_lines
from tdiag.diagnose.predictions import with_predictions
from tdiag.diagnose.straggler import of_ranks, rank_steps, with_its_first_finding
from tdiag.diagnose.together import together
from tdiag.diagnose.top import top_parts
from tdiag.diagnose.verdict import judge
from tdiag.evidence.device import DeviceTime
from tdiag.evidence.machine import Environment
from tdiag.evidence.steps import Budget, Steps, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Component, Diagnosis, StepTime
from tdiag.model.notes import Note
from tdiag.model.threshold import NOTICEABLE_FRAC, Threshold
from tdiag.model.timeline import Timeline
from tdiag.model.watched import Watched
from tdiag.rules.catalogue import find
from tdiag.units import duration

__all__ = ["diagnose"]

UNEVEN_FACTOR = Threshold(
    3,
    "times the median",
    "By arithmetic: if the mean exceeds three medians, at least two thirds of the time go to work"
    " that only some steps do.",
)
P90 = Threshold(
    0.9, "of the steps", "By definition of the 90th percentile, which 9 of 10 steps do not exceed."
)


def diagnose(evidence: Evidence) -> Diagnosis:
    """The whole diagnosis, from the evidence of a run or of a bare trace.

    Adds the Budget to ``evidence``, and divides its phases where the marks cannot. Never raises on
    incomplete evidence: the diagnosis says what is missing.
    """
    if phases := divided(evidence):
        evidence.add(phases)
    evidence.add(*with_predictions(evidence))
    budget = make_budget(evidence)
    if budget is None:
        evidence.missing.setdefault(Budget, evidence.missing.get(Steps, "no step was measured"))
    else:
        evidence.add(budget)
    findings, abstained = run_rules(evidence)
    findings = with_fetch_lines(evidence, findings)
    findings = with_its_first_finding(findings, evidence)
    watched = evidence.get(Watched)
    verdict = of_watched(evidence, watched) if watched else judge(evidence, budget, findings)
    findings = with_line_classes(findings, evidence, budget)
    verdict = of_ranks(verdict, evidence, _communicating_step(evidence, budget))
    if verdict.healthy:  # no fix is urgent, so findings become advisories
        findings = [msgspec.structs.replace(found, advisory=True) for found in findings]
    else:  # a statement of health is shown only with a healthy verdict
        findings = [found for found in findings if find(found.code).only_if != "healthy"]
    return Diagnosis(
        verdict=verdict,
        step=_step(evidence, budget),
        budget=_components(budget),
        findings=tuple(findings),
        abstained=tuple(abstained),
        together=together(findings, _components(budget)),
        perturbation=dict(evidence.perturbation),
        environment=_environment(evidence),
        capture=dict(evidence.capture),
        notes=(*evidence.notes, *_crowded(evidence), *_uneven(evidence, budget)),
        timeline=evidence.get(Timeline),
        top=tuple(top_parts(evidence)),
        ranks=rank_steps(evidence),
        roofline=make_roofline(evidence, budget),
        compiled=make_compile_report(evidence),
        watched=watched,
    )


def _step(evidence: Evidence, budget: Budget | None) -> StepTime | None:
    """The clean step time; for a bare trace, the traced one."""
    steps, traced = evidence.get(Steps), evidence.get(TracedSteps)
    if steps is not None:
        return StepTime(steps.mean_ns, steps.median_ns, steps.p90_ns, steps.count)
    if traced is None or not traced.durations_ns:
        return None
    ordered = sorted(traced.durations_ns)
    mean = budget.step_ns if budget else traced.mean_ns
    last = len(ordered) - 1
    return StepTime(mean, ordered[last // 2], ordered[round(last * P90)], traced.count)


def _components(budget: Budget | None) -> tuple[Component, ...]:
    """Largest first."""
    parts = budget.components_ns if budget else {}
    return tuple(Component(name, ns) for name, ns in sorted(parts.items(), key=lambda p: -p[1]))


def _environment(evidence: Evidence) -> dict[str, Any]:
    found = evidence.get(Environment)
    return msgspec.to_builtins(found) if found else {}


def _crowded(evidence: Evidence) -> tuple[Note, ...]:
    """A note if other programs took so many cores that they slowed down the run."""
    left = undisturbed(evidence)
    if left >= 1 - NOTICEABLE_FRAC:
        return ()
    text = (
        f"other programs kept {1 - left:.0%} of the machine's cores busy: this run waited for a"
        " core and would be faster alone"
    )
    return (Note("crowded-machine", text, "warning"),)


def _uneven(evidence: Evidence, budget: Budget | None) -> tuple[Note, ...]:
    """A note if a few steps take most of the time.

    A component whose mean exceeds the median step cannot be in most of the steps.
    """
    steps = evidence.get(Steps)
    if steps is None or steps.mean_ns <= UNEVEN_FACTOR * steps.median_ns:
        return ()
    rare = [x.component for x in _components(budget) if x.ns > steps.median_ns]
    note = (
        f"most steps take about {duration(steps.median_ns)}, but the mean is"
        f" {duration(steps.mean_ns)}: a few steps take the rest of the time"
    )
    return (Note("few-steps-dominate", f"{note}, mostly in {rare[0]}" if rare else note),)


def _communicating_step(evidence: Evidence, budget: Budget | None) -> float | None:
    """The step whose communication was measured, ns: the device's, else the clean one."""
    device = evidence.get(DeviceTime)
    if device is not None:
        return device.step_ns
    return None if budget is None else budget.step_ns
