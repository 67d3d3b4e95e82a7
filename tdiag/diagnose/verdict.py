"""The verdict: one class, its share of the clean step, its confidence, and the runner-up.

docs/verdict.md has the decision table and its reasons.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tdiag.diagnose.blind import blind
from tdiag.diagnose.choice import Choice, choose, surely
from tdiag.diagnose.costs import CROWDED, Costs, family_of, undisturbed, weigh
from tdiag.diagnose.efficiency import EFFICIENT_FRAC, make_roofline, unknown_work, why_unknown
from tdiag.diagnose.main_line import (
    fetched_by,
    framework_loop,
    most_lost,
    named,
    sampled_there,
    unexplained_place,
)
from tdiag.diagnose.preparing import prepared_by
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.steps import Budget, Steps, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import HostOps
from tdiag.model.diagnosis import Finding, Roofline, Verdict
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC, Threshold
from tdiag.rules.feed import MIN_READ_BYTES
from tdiag.rules.thresholds import HEALTHY_COMPUTE_FRAC, HIGH_FRAC
from tdiag.units import count as counted
from tdiag.units import duration

GUESS_CONFIDENCE = Threshold(
    0.6,
    "confidence at most",
    "Heuristic: a class inferred from circumstances (who uses the CPU where) is right more often"
    " than not.",
)

BLOCKED = "waiting in the dataset for something other than storage"  # a service, a lock, a sleep
BEFORE_THE_FORWARD = "waiting for something other than the CPU before the forward"
BY_HAND = "waiting for files between steps"
NEITHER = "neither for storage nor for preprocessing"
CACHED = "reading files that are in memory already (the page cache)"
WORDS = {
    "io": "waiting for storage",
    "cpu": "waiting for preprocessing on the CPU",
    "input": "waiting for data",
    "loader": "starting worker processes",
    "h2d": "copying between host and device",
    "compute": "computing",
    "python_loss": "Python control flow in the loss",
    "sync": "waiting for synchronisations",
    "overhead": "Python, dispatch and framework overhead",
    "eval": "evaluation",
    "rollout": "gathering training data",
    "checkpoint": "saving checkpoints",
    "logging": "logging",
    "memory": "allocating and moving memory",
    "comm": "communication not overlapped with computation",
    "straggler": "waiting for a slower rank",
}

AFTER_THE_STEP = "work after the optimizer's step"
IN_THE_STEP = "the optimizer's step: Python and calls that do little work"


def judge(evidence: Evidence, budget: Budget | None, findings: Sequence[Finding]) -> Verdict:
    """One class of the closed vocabulary; ``unknown`` if the decisive evidence is missing.

    The class is the waste that costs most, if it costs enough; otherwise ``compute``.
    ``findings`` are ranked, best first.
    """
    if budget is None:
        return _without_budget(evidence)
    if budget.blind:
        return blind(evidence, budget)
    costs = weigh(evidence, budget, findings)
    choice = choose(evidence, costs, findings)
    certainty = _certainty(evidence) * (1 - budget.share("unattributed"))
    if choice.cls == "compute":
        sure = surely(evidence, costs, findings)
        roofline, why = _roofline_of(evidence, budget, costs)
        waste = None
        if roofline and _alone(evidence, costs):
            waste = _wasted(roofline, costs, findings, unknown_work(evidence))
        if roofline and waste and waste[0] > (sure.share if sure else 0.0):
            share, words = waste
            confidence = min(1.0, share / choice.share) * certainty * roofline.certainty
            wasteful = Choice("overhead", share, confidence, "compute", choice.share - share)
            return _verdict(wasteful, confidence, words)
        if sure is None:
            if roofline is None and not budget.has_device:
                # On a device, kernels were seen to run; on a CPU the time may be the cost of
                # calling torch.
                certainty = min(certainty, GUESS_CONFIDENCE)
            lost = most_lost(roofline, evidence) if roofline else ""
            few = ""
            if roofline and _alone(evidence, costs):
                few = _too_few_threads(roofline, costs)
            return _compute(choice, costs, findings, certainty, roofline, why, lost, few)
        choice = sure
    certain = choice.cls == "overhead" or choice.share * costs.step_ns >= costs.compute
    if costs.doubts and not certain:
        return _doubtful(costs)  # possible overhead exceeds the certain waste
    if choice.cls == "unknown":
        where = costs.unexplained_where
        summary = f"{choice.share:.0%} of the step is spent {unexplained_place(evidence, where)}"
        why = sampled_there(evidence, where)
        return _unknown(choice.share, choice.runner_up, f"{summary}; {why}")
    confidence = choice.confidence * certainty
    if choice.cls in costs.guessed:
        confidence = min(confidence, GUESS_CONFIDENCE)
    family = family_of(choice.cls)
    whole = costs.families()[family] / costs.step_ns
    words = _words(choice, evidence, budget, costs, findings)
    summary = f"{choice.share:.0%} of the step goes to {words}"
    if family == "input" and whole - choice.share >= NOTICEABLE_FRAC:
        what = NEITHER if words == WORDS["input"] else f"for {words.removeprefix('waiting for ')}"
        summary = f"{whole:.0%} of the step waits for data: {choice.share:.0%} {what}"
    summary += _next(choice)
    share, whose, cls = costs.crowded or (0.0, "", "")
    if family_of(cls) == family:
        summary += f"; {share:.0%} of the step computes and waits for a core that {whose} have"
    if family == "input":
        mine = [f for f in findings if family_of(f.cls) == family and not f.advisory]
        summary += fetched_by(evidence, budget, mine)
    elif costs.by_line and costs.by_line[0] == choice.cls:
        summary += f"; most samples:{named(costs.by_line[1])}"
    elif costs.by_framework and choice.cls == "overhead":
        summary += framework_loop(costs.by_framework)
    return _verdict(choice, confidence, summary)


def _roofline_of(evidence: Evidence, budget: Budget, costs: Costs) -> tuple[Roofline | None, str]:
    """The roofline of most of the computing; else None, and why."""
    found = make_roofline(evidence, budget)
    if found is None:
        return None, why_unknown(evidence)
    if found.step_ns < MAJORITY_FRAC * costs.compute * undisturbed(evidence):
        return None, "most of it runs outside of the measured phases"
    return found, ""


def _words(
    choice: Choice,
    evidence: Evidence,
    budget: Budget,
    costs: Costs,
    findings: Sequence[Finding],
) -> str:
    """Where the step's time goes. Storage is named only if it was read. Overhead has a place if it
    is that of the optimizer's step, or if it follows the step; the latter may be anything."""
    cls = choice.cls
    after = 0.0 if budget.has_device else budget.share("other")
    if cls == "overhead" and after > MAJORITY_FRAC * choice.share:
        return AFTER_THE_STEP
    mine = (x for x in findings if x.speedup and not x.advisory and costs.class_of(x) == cls)
    most = max(mine, key=lambda x: x.at_best_ns, default=None)
    if cls == "overhead" and most and most.components == ("optimizer",):
        return IN_THE_STEP
    loaders = evidence.get(Loaders)
    train = loaders.train() if loaders else None
    if cls == "io" and budget.share("data_wait_cpu") > budget.share("data_wait_io"):
        return CACHED
    if cls == "io" and "data_wait_io" not in budget.components_ns:
        return BY_HAND if prepared_by(evidence) == cls else BEFORE_THE_FORWARD
    if cls == "io" and train and train.read_bytes is not None and train.read_bytes < MIN_READ_BYTES:
        return WORDS[cls] if train.major_faults else BLOCKED
    return WORDS[cls]


def _alone(evidence: Evidence, costs: Costs) -> bool:
    """Whether the calls took only the program's own time: threads that wait for each other lose
    more time to other programs than the run queue shows."""
    return not costs.doubts and undisturbed(evidence) >= MAJORITY_FRAC


def _wasted(
    roofline: Roofline, costs: Costs, findings: Sequence[Finding], unknown_ns: float
) -> tuple[float, str] | None:
    """The share of the step that neither arithmetic nor memory traffic explains but calls do, and a
    sentence about it; None if it is below ``HIGH_FRAC``, or if a finding about the computing itself
    explains as much, or work that the roofline does not know takes as much. ``unknown_ns``: time of
    calls that may be such work, per step."""
    computing = costs.compute / costs.step_ns
    shares = [f.at_best_ns / costs.step_ns for f in findings if f.cls == "compute"]
    explained = max(HIGH_FRAC, *shares, 0.0)
    unknown = unknown_ns / costs.step_ns
    called = computing * (1 - roofline.efficiency) - unknown
    inefficient = roofline.efficiency < EFFICIENT_FRAC and roofline.bound == "dispatch"
    if not inefficient or called < max(explained, unknown):
        return None
    return called, (
        f"{called:.0%} of the step is neither arithmetic nor memory traffic"
        f" ({duration(roofline.best_ns)} at best): it is spent around"
        f" {counted(roofline.calls)} calls of torch, which would take"
        f" {duration(roofline.dispatch_ns)} on next to no data"
    )


def _too_few_threads(roofline: Roofline, costs: Costs) -> str:
    """How much of the computing more threads would save, in words; "" if it is less than
    ``HIGH_FRAC`` of the step."""
    if costs.compute / costs.step_ns * roofline.idle_threads_frac < HIGH_FRAC:
        return ""
    return (
        f" with {roofline.threads_used} of {roofline.threads} threads: with all of them it would"
        f" take {1 - roofline.idle_threads_frac:.0%} of the time at best"
    )


def _reached(roofline: Roofline | None, why: str) -> str:
    """How efficiently the step computes, in words."""
    if roofline is None:
        return f"; how efficiently is unknown: {why}"
    reached = f", at {roofline.efficiency:.0%} of {roofline.reachable}"
    if roofline.efficiency >= EFFICIENT_FRAC:
        return reached
    calls = f"{counted(roofline.calls)} calls cost at least {duration(roofline.dispatch_ns)}"
    return (
        f"{reached}: its work needs {duration(roofline.best_ns)} of"
        f" {duration(roofline.step_ns)} at best"
        + (f", its {calls}" if roofline.dispatch_ns else "")
    )


def _compute(
    choice: Choice,
    costs: Costs,
    findings: Sequence[Finding],
    certainty: float,
    roofline: Roofline | None,
    why: str,
    lost: str,
    few: str,
) -> Verdict:
    if costs.doubts:
        return _doubtful(costs)
    gain = NOTICEABLE_FRAC * costs.step_ns
    winnable = [f for f in findings if not f.advisory and f.recoverable_ns >= gain]
    confidence = choice.confidence * certainty
    likely = confidence >= MAJORITY_FRAC
    healthy = choice.share >= HEALTHY_COMPUTE_FRAC and not winnable and likely
    healthy = healthy and not costs.unseen
    efficient = roofline is not None and roofline.efficiency >= EFFICIENT_FRAC
    sure = roofline is not None and roofline.certainty >= MAJORITY_FRAC
    healthy = healthy and efficient and sure and not few
    summary = f"{choice.share:.0%} of the step is computing{few or _reached(roofline, why)}"
    summary += ": healthy" if healthy else _next(choice)
    if not (efficient or winnable):
        summary += lost
    if winnable and choice.runner_up is None:
        share = winnable[0].recoverable_ns / costs.step_ns
        summary += f"; the largest gain is {winnable[0].name} ({share:.0%})"
    return _verdict(choice, confidence, summary, healthy)


def _doubtful(costs: Costs) -> Verdict:
    share = costs.compute / costs.step_ns
    summary = (
        f"{share:.0%} of the step is forward, loss, backward and optimizer, but"
        f" {' and '.join(costs.doubts)}: how much of that is work is unknown"
    )
    if CROWDED in costs.doubts:
        summary += "; run it again when they have ended, or on cores that they do not use"
    return _unknown(share, "compute", summary)


def _certainty(evidence: Evidence) -> float:
    """How well the clean steps represent later ones, 0..1.

    The rule of succession, (n + 1) ÷ (n + 2) after n equal cases, reduced by twice the relative
    standard error of the mean, times the share of the machine that the run had to itself.
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
        certain /= 1 + 2 * error
    return certain * undisturbed(evidence)


def _without_budget(evidence: Evidence) -> Verdict:
    if evidence.get(Steps) is None and (evidence.get(TracedSteps) or evidence.get(HostOps)):
        return Verdict(
            cls="no_device_activity",
            share=0.0,
            confidence=1.0,
            runner_up=None,
            summary="the trace contains no device activity: the device was not profiled",
        )
    reason = evidence.missing.get(Steps, "no step was measured")
    return _unknown(0.0, None, reason)


def _verdict(choice: Choice, confidence: float, summary: str, healthy: bool = False) -> Verdict:
    return Verdict(
        cls=choice.cls,
        share=round(choice.share, 6),
        confidence=round(min(1.0, max(0.0, confidence)), 2),
        runner_up=choice.runner_up,
        summary=summary,
        healthy=healthy,
    )


def _unknown(share: float, runner_up: str | None, summary: str) -> Verdict:
    return Verdict(
        cls="unknown", share=round(share, 6), confidence=0.0, runner_up=runner_up, summary=summary
    )


def _next(choice: Choice) -> str:
    if choice.runner_up is None or choice.runner_up not in WORDS:
        return ""
    words = WORDS[choice.runner_up]
    if choice.runner_up == "input" and family_of(choice.cls) == "input":
        words = f"{words} otherwise"
    return f"; next: {words} ({choice.runner_up_share:.0%})"
