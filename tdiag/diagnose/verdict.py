"""The verdict: one class, its share of the clean step, how sure, and what comes next.

The decision table with its reasons is docs/verdict.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tdiag.diagnose.costs import INPUT, Costs, undisturbed, weigh
from tdiag.diagnose.model import Finding, Verdict
from tdiag.evidence.device import HostOps, TracedSteps
from tdiag.evidence.kinds import Budget, Steps
from tdiag.evidence.store import Evidence

# TensorFlow's input-pipeline analysis calls a program "highly" bound by something from 20 % of
# the step time on, "moderately" from 5 % on, and not bound by it below
# (kHighlyInfeedBoundThresholdInPercent, kModeratelyInfeedBoundThresholdInPercent).
HIGH_FRAC = 0.20
MODERATE_FRAC = 0.05
# By definition of "mostly": below it the step is not mostly computing, and the largest waste
# names the bottleneck even if it is only moderate.
MAJORITY_FRAC = 0.5
# With four fifths of the step computing, doing away with all the rest wins at most 1.25×.
HEALTHY_COMPUTE_FRAC = 0.8
# Costs within a quarter of each other are a tie: predicted gains are ranges at least that wide.
TIE_FRAC = 0.75
# A class told by circumstance (who uses the CPU where) is right more often than not, no more.
GUESS_CONFIDENCE = 0.6

_WORDS = {
    "io": "waiting for storage",
    "cpu": "waiting for preprocessing on the CPU",
    "input": "waiting for data",
    "loader": "starting the DataLoader's workers",
    "h2d": "copying between host and device",
    "compute": "computing",
    "python_loss": "Python control flow in the loss",
    "sync": "waiting for synchronisations",
    "overhead": "Python, dispatch and framework overhead between the work",
    "eval": "evaluation",
    "checkpoint": "saving checkpoints",
    "logging": "logging",
    "memory": "allocating and moving memory",
    "comm": "communication that nothing overlaps",
    "straggler": "waiting for a slower rank",
}
_PLACES = {
    "other": "after the optimizer's step",
    "prepare": "between the batch and the first forward",
    "unattributed": "in places that no hook tells apart",
}


def judge(evidence: Evidence, budget: Budget | None, findings: Sequence[Finding]) -> Verdict:
    """One class of the closed vocabulary; ``unknown`` where the decisive evidence is missing.

    The class is where time can be won: the waste that costs most, if it costs enough; else
    ``compute``. ``findings`` are ranked best first.
    """
    if budget is None:
        return _without_budget(evidence)
    costs = weigh(evidence, budget, findings)
    candidate = _choose(costs, findings)
    if candidate.cls == "compute":
        return _compute(evidence, costs, candidate, findings)
    if candidate.cls == "unknown":
        summary = f"{candidate.share:.0%} of the step passes {_PLACES[costs.unexplained_where]}"
        return _unknown(candidate.share, candidate.runner_up, f"{summary}; nothing tells why")
    confidence = candidate.confidence * _certainty(evidence)
    if candidate.cls in costs.guessed:
        confidence = min(confidence, GUESS_CONFIDENCE)
    summary = f"{candidate.share:.0%} of the step goes to {_WORDS[candidate.cls]}"
    return _verdict(candidate, confidence, summary + _next(candidate))


@dataclass(frozen=True)
class _Candidate:
    """``confidence``: by the distance to the runner-up alone."""

    cls: str
    share: float
    confidence: float
    runner_up: str | None
    runner_up_share: float = 0.0


def _choose(costs: Costs, findings: Sequence[Finding]) -> _Candidate:
    groups = costs.groups()
    waste = max(groups, key=lambda name: groups[name], default="")
    cost = groups.get(waste, 0.0)
    least = HIGH_FRAC if costs.compute >= MAJORITY_FRAC * costs.step_ns else MODERATE_FRAC
    if costs.unexplained > max(cost, costs.compute):
        return _candidate(costs, "unknown", costs.unexplained, groups)
    if cost < least * costs.step_ns:
        return _candidate(costs, "compute", costs.compute, groups)
    for finding in findings[:1]:  # a tie goes to what the user sees first
        group = "input" if finding.cls in INPUT else finding.cls
        if not finding.advisory and groups.get(group, 0.0) >= TIE_FRAC * cost:
            waste, cost = group, groups[group]
    if costs.unexplained > cost:
        return _candidate(costs, "unknown", costs.unexplained, groups)
    if waste == "input":
        return _input(costs, cost, groups, findings)
    return _candidate(costs, waste, cost, groups)


def _input(
    costs: Costs, cost: float, groups: dict[str, float], findings: Sequence[Finding]
) -> _Candidate:
    """Which kind of data wait; the top finding decides between parts of about the same size."""
    parts = {cls: costs.by_class[cls] for cls in INPUT if cls in costs.by_class}
    chosen = max(parts, key=lambda cls: parts[cls])
    for finding in findings[:1]:
        if parts.get(finding.cls, 0.0) >= TIE_FRAC * parts[chosen]:
            chosen = finding.cls
    others = [ns for cls, ns in parts.items() if cls != chosen]
    candidate = _candidate(costs, chosen, cost, groups, group="input")
    # The fix depends on the kind, so a close split makes the verdict as uncertain as it is.
    split = parts[chosen] / (parts[chosen] + max(others, default=0.0))
    second = max(parts, key=lambda cls: parts[cls] if cls != chosen else -1.0)
    near = second != chosen and parts[second] > candidate.runner_up_share * costs.step_ns
    return _Candidate(
        chosen,
        candidate.share,
        min(candidate.confidence, split),
        second if near else candidate.runner_up,
        parts[second] / costs.step_ns if near else candidate.runner_up_share,
    )


def _candidate(
    costs: Costs, cls: str, cost: float, groups: dict[str, float], group: str | None = None
) -> _Candidate:
    """Confidence: even odds against an equal rival, certainty without one."""
    rivals = groups | {"compute": costs.compute}
    rivals.pop(group or cls, None)
    if cls != "compute":
        # Compute is what is left when nothing can be won; it rivals only where it is far larger.
        least = HIGH_FRAC * costs.step_ns
        rivals["compute"] = costs.compute if cost < least else 0.0
    rival = max(rivals, key=lambda name: rivals[name], default="")
    against = min(rivals.get(rival, 0.0), cost)
    shown = rival if rivals.get(rival, 0.0) >= MODERATE_FRAC * costs.step_ns else None
    if shown == "input":
        shown = max((c for c in INPUT if c in costs.by_class), key=lambda c: costs.by_class[c])
    confidence = 0.5 + 0.5 * (1 - against / cost) if cost else 0.5
    runner_up_share = rivals.get(rival, 0.0) / costs.step_ns if shown else 0.0
    return _Candidate(cls, min(1.0, cost / costs.step_ns), confidence, shown, runner_up_share)


def _compute(
    evidence: Evidence, costs: Costs, candidate: _Candidate, findings: Sequence[Finding]
) -> Verdict:
    if costs.doubts:
        summary = (
            f"{candidate.share:.0%} of the step is forward, loss, backward and optimizer, but "
            f"{' and '.join(costs.doubts)}: whether that is work or overhead cannot be told"
        )
        return _unknown(candidate.share, "compute", summary)
    gain = MODERATE_FRAC * costs.step_ns
    winnable = [f for f in findings if not f.advisory and f.recoverable_ns >= gain]
    healthy = candidate.share >= HEALTHY_COMPUTE_FRAC and not winnable
    summary = f"{candidate.share:.0%} of the step is computing"
    summary += ": healthy" if healthy else _next(candidate)
    confidence = candidate.confidence * _certainty(evidence)
    return _verdict(candidate, confidence, summary, healthy)


def _certainty(evidence: Evidence) -> float:
    """How far the clean steps stand for those to come, 0..1.

    The rule of succession, (n + 1) ÷ (n + 2) after n like cases, times what two standard errors
    of the mean leave certain, times the share of the machine that the run had to itself.
    """
    steps = evidence.get(Steps)
    if steps is None:
        traced = evidence.get(TracedSteps)
        durations, count = (traced.durations_ns, traced.count) if traced else ((), 0)
    else:
        durations, count = steps.durations_ns, steps.count
    certain = (count + 1) / (count + 2)
    if len(durations) > 1 and (mean := float(np.mean(durations))) > 0:
        error = float(np.std(durations, ddof=1)) / len(durations) ** 0.5 / mean
        certain *= max(0.0, 1 - 2 * error)
    return certain * undisturbed(evidence)


def _without_budget(evidence: Evidence) -> Verdict:
    if evidence.get(Steps) is None and (evidence.get(TracedSteps) or evidence.get(HostOps)):
        return Verdict(
            cls="no_device_activity",
            share=0.0,
            confidence=1.0,
            runner_up=None,
            summary="the trace holds no device activity: what the device did was not captured",
        )
    reason = evidence.missing.get(Steps, "no step was measured")
    return _unknown(0.0, None, reason)


def _verdict(
    candidate: _Candidate, confidence: float, summary: str, healthy: bool = False
) -> Verdict:
    return Verdict(
        cls=candidate.cls,
        share=round(candidate.share, 4),
        confidence=round(min(1.0, max(0.0, confidence)), 2),
        runner_up=candidate.runner_up,
        summary=summary,
        healthy=healthy,
    )


def _unknown(share: float, runner_up: str | None, summary: str) -> Verdict:
    return Verdict(
        cls="unknown",
        share=round(share, 4),
        confidence=0.0,
        runner_up=runner_up,
        summary=summary,
    )


def _next(candidate: _Candidate) -> str:
    if candidate.runner_up is None or candidate.runner_up not in _WORDS:
        return ""
    return f"; next, {candidate.runner_up_share:.0%}: {_WORDS[candidate.runner_up]}"
