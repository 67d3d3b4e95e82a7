"""From evidence to diagnosis: budget, rules, verdict."""

from __future__ import annotations

from typing import Any

import msgspec

from tdiag.diagnose.budget import make_budget
from tdiag.diagnose.costs import MODERATE_FRAC, undisturbed
from tdiag.diagnose.engine import run_rules
from tdiag.diagnose.model import Component, Diagnosis, StepTime
from tdiag.diagnose.verdict import judge
from tdiag.evidence.device import TracedSteps
from tdiag.evidence.kinds import Budget, Environment, Steps
from tdiag.evidence.store import Evidence

__all__ = ["diagnose"]


def diagnose(evidence: Evidence) -> Diagnosis:
    """Everything a report says, from the evidence of a run or of a bare trace.

    Adds the Budget to ``evidence``. Whatever is missing is said in the diagnosis; it never raises
    on evidence that is incomplete.
    """
    budget = make_budget(evidence)
    if budget is None:
        evidence.missing.setdefault(Budget, evidence.missing.get(Steps, "no step was measured"))
    else:
        evidence.add(budget)
    findings, abstained = run_rules(evidence)
    return Diagnosis(
        verdict=judge(evidence, budget, findings),
        step=_step(evidence, budget),
        budget=_components(budget),
        findings=tuple(findings),
        abstained=tuple(abstained),
        perturbation=dict(evidence.perturbation),
        environment=_environment(evidence),
        capture=dict(evidence.capture),
        notes=(*evidence.notes, *_crowded(evidence)),
    )


def _step(evidence: Evidence, budget: Budget | None) -> StepTime | None:
    """The clean step time; of a bare trace, the traced one."""
    steps, traced = evidence.get(Steps), evidence.get(TracedSteps)
    if steps is not None:
        return StepTime(steps.mean_ns, steps.median_ns, steps.p90_ns, steps.count)
    if traced is None or not traced.durations_ns:
        return None
    ordered = sorted(traced.durations_ns)
    mean = budget.step_ns if budget else traced.mean_ns
    last = len(ordered) - 1
    return StepTime(mean, ordered[last // 2], ordered[round(last * 0.9)], traced.count)


def _components(budget: Budget | None) -> tuple[Component, ...]:
    """Largest first."""
    parts = budget.components_ns if budget else {}
    return tuple(Component(name, ns) for name, ns in sorted(parts.items(), key=lambda p: -p[1]))


def _environment(evidence: Evidence) -> dict[str, Any]:
    found = evidence.get(Environment)
    return msgspec.to_builtins(found) if found else {}


def _crowded(evidence: Evidence) -> tuple[str, ...]:
    """A note where other programs took so much of the machine that the run was slowed by it."""
    left = undisturbed(evidence)
    if left >= 1 - MODERATE_FRAC:
        return ()
    return (
        f"other programs kept {1 - left:.0%} of the machine's cores busy: this run waited for a"
        " core, and its times would be shorter alone",
    )
