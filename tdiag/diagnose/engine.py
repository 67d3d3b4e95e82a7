"""Runs the rules over the evidence and ranks their findings by recoverable time per step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from tdiag.diagnose.by_device import of_device, of_issuing, priced_by_device, spared
from tdiag.diagnose.cores_back import with_cores_back
from tdiag.diagnose.framework_setting import made_at
from tdiag.diagnose.replayed import replayed
from tdiag.evidence.device import DEVICE_BUSY
from tdiag.evidence.machine import Environment
from tdiag.evidence.steps import Budget, Phases, Steps, phase_of_component
from tdiag.evidence.store import Evidence
from tdiag.frameworks import in_its_terms
from tdiag.model.diagnosis import Abstained, Finding, Fix, Speedup
from tdiag.model.place import Place
from tdiag.model.threshold import NORMAL_95, NOTICEABLE_FRAC, Threshold
from tdiag.probe.wire import is_user_file
from tdiag.rules.base import (
    DATA_WAIT,
    NOISE_FLOOR_FRAC,
    Abstain,
    Found,
    Gain,
    held,
    same_function,
)
from tdiag.rules.catalogue import Rule, all_rules, needs
from tdiag.rules.device_waits import ISSUING
from tdiag.units import only_from_below

MAX_RECOVERABLE_FRAC = Threshold(
    0.99,
    "of the step",
    "By definition: no fix leaves a step of zero time; keeps 1 ÷ (1 − share) finite.",
)
FREED_FRAC = Threshold(
    0.45,
    "of the rest of the step",
    "Measured: the rest of the step gets faster by at most this, times the share of the step that"
    " the fix removes, in 29 of 34 scripts written for a test; by at most 0.2 in 21 of them, and in"
    " 52 of 56 planted twins (benchmarks/rule_constants.py engine.FREED_FRAC). It then has caches,"
    " memory bandwidth and the allocator to itself.",
)
RUNS_DIFFER_FRAC = Threshold(
    0.05,
    "of the rest of the step",
    "Measured: three bare runs of one program on a quiet machine differ by 4 % (largest ÷ smallest"
    " step time, median of 118 programs), a quarter of them by 7 % or more"
    " (benchmarks/rule_constants.py engine.RUNS_DIFFER_FRAC). With the fix it is another run.",
)
QUICK_FRAC = Threshold(
    0.25,
    "of the steps",
    "By arithmetic: steps of normally distributed length have a lower quartile 0.67 standard"
    " deviations below their mean, further than 1.96 standard errors of nine steps. So only rare"
    " long steps make it count.",
)
HOOKS_NS = Threshold(
    40_000, "ns per step", "benchmarks/hooks.py: tdiag's own hooks cost a clean step 37 to 65 µs."
)
COMES_FIRST_FRAC = Threshold(
    0.5,
    "of the gain",
    "Heuristic: a cause is listed before the fix that would hide it if it gains at least half as"
    " much.",
)

LEARNING = "TD0"  # codes of rules about how well a model learns, not how fast

# Components in which the host does not wait for the device's computations.
WITHOUT_DEVICE = frozenset((*DATA_WAIT, "gc"))


def run_rule(rule: Rule, evidence: Evidence) -> Finding | Abstained | None:
    """One rule's finding, why it abstains, or None if its pattern is not there."""
    arguments = {}
    for name, (kind, required) in needs(rule).items():
        arguments[name] = evidence.get(kind)
        if required and arguments[name] is None:
            return Abstained(rule.code, rule.name, evidence.why_missing(kind))
    budget = evidence.get(Budget)
    by_device = rule.by_work and budget is not None and budget.has_device
    try:
        by_host = arguments
        if by_device:
            priced = priced_by_device(evidence)
            arguments = arguments | {
                name: priced[kind] for name, (kind, _) in needs(rule).items() if kind in priced
            }
        found = rule.check(**arguments)
        if found is None:
            return None
        if by_device and budget is not None:
            found = _of_device(rule, found, by_host, budget, evidence.get(Phases))
        elif rule.by_issue and budget is not None and budget.has_device:
            found = of_issuing(found, evidence)
        return _finding(rule, found, evidence)
    except Abstain as lacking:
        return Abstained(rule.code, rule.name, str(lacking))
    # Deliberately broad: a faulty rule must not suppress the other findings.
    except Exception as fault:
        what = f"the rule itself failed: {type(fault).__name__}: {fault}"
        return Abstained(rule.code, rule.name, what)


def _of_device(
    rule: Rule, found: Found, by_host: Mapping[str, Any], budget: Budget, phases: Phases | None
) -> Found:
    """``by_host``: the rule's arguments with the host's times."""
    if found.gain is None or not found.gain.calls_go or phases is None:
        return of_device(found, budget)
    return of_device(found, budget, spared(rule.check(**by_host), phases))


def _finding(rule: Rule, found: Found, evidence: Evidence) -> Finding | None:
    budget = evidence.get(Budget)
    if found.gain is not None and budget is not None:
        gain = _unseen(found.gain, budget) if budget.blind else found.gain
        gain = with_cores_back(gain, evidence, budget)
        found = replace(found, gain=replayed(gain, evidence, budget))
    low, high = (0, 0) if found.gain is None else _capped(found.gain, budget)
    if found.gain is not None and budget and high < NOISE_FLOOR_FRAC * budget.step_ns:
        return None
    speedup, present = None, () if found.gain is None else _present(found.gain, budget)
    if found.gain is not None:
        speedup = _speedup(low, high, budget, _error_of_rest(present, evidence))
    # Ranked by what the fix removes; what then gets faster beside it is the same for all.
    sure = bool(speedup and budget and only_from_below(speedup.low, _faster(high, budget)))
    return Finding(
        code=rule.code,
        name=rule.name,
        cls=found.cls or rule.cls,
        summary=found.summary,
        location=_place(_made_at(found, rule.code, evidence)),
        evidence=found.evidence,
        recoverable_ns=max(0, low if sure else (low + high) // 2),
        at_best_ns=high,
        speedup=speedup,
        why_gain="" if found.gain is None else found.gain.why,
        fix=found.fix if found.own else _spelled(found, rule.code, evidence),
        advisory=found.gain is None or _perhaps(low, high, budget),
        components=present,
    )


def _unseen(gain: Gain, budget: Budget) -> Gain:
    """The gain if no trace shows what the device did. In most phases the host may be waiting for
    the device, so no gain is known (Abstain). While the host does not wait for it, the device may
    have worked all the time, so the low end is zero."""
    if not set(_present(gain, budget)) <= WITHOUT_DEVICE:
        raise Abstain("the run's device was not traced, so waiting for it looks like host time")
    why = f"{gain.why} Or nothing, if the device works at the same time: it was not traced."
    return replace(gain, low_ns=min(0.0, gain.low_ns), why=why)


def _perhaps(low: int, high: int, budget: Budget | None) -> bool:
    """Whether the low end is zero and the high end is not noticeable."""
    return low <= 0 and budget is not None and high < NOTICEABLE_FRAC * budget.step_ns


def _spelled(found: Found, code: str, evidence: Evidence) -> Fix:
    """The fix in the terms of the framework that drives the loop. If that fails, the finding keeps
    torch's own terms, and a note says so."""
    driver = _driver(evidence)
    try:
        return in_its_terms(found.fix, code, driver, found.parts)
    # Deliberately broad: one faulty framework must not cost the user the finding.
    except Exception as fault:
        what = f"{type(fault).__name__}: {fault}"
        text = (
            f"fixes are written for plain torch: tdiag could not write them for {driver} ({what})"
        )
        if text not in [note.text for note in evidence.notes]:
            evidence.note("framework", text)
        return found.fix


def _made_at(found: Found, code: str, evidence: Evidence) -> Place | None:
    if found.own:
        return found.at
    return made_at(found.at, code, _driver(evidence), found.parts)


def _driver(evidence: Evidence) -> str:
    """The package of the framework that calls the optimizer; "" for the user's own loop."""
    environment = evidence.get(Environment)
    return environment.framework[0] if environment and environment.framework else ""


def _capped(gain: Gain, budget: Budget | None) -> tuple[int, int]:
    """The range, limited to the time in its budget components; Abstain without a budget."""
    if budget is None:
        raise Abstain("no step time was measured, so no gain can be computed")
    ceiling = sum(budget.components_ns[name] for name in _present(gain, budget))
    high = min(max(0, round(gain.high_ns)), ceiling)
    return min(round(gain.low_ns), high), high


def _present(gain: Gain, budget: Budget | None) -> tuple[str, ...]:
    return tuple(name for name in gain.components if budget and name in budget.components_ns)


def _error_of_rest(components: tuple[str, ...], evidence: Evidence) -> float:
    """The sampling error of the step's time outside these components, ns: 1.96 standard errors of
    its mean over the clean steps; 0 if unknown. If a fix removes nearly all of a step, a small
    error of the rest is a large error of the speed-up. Where a few steps take much longer, the rest
    is at least what the quickest quarter of the steps shows."""
    phases, steps, budget = evidence.get(Phases), evidence.get(Steps), evidence.get(Budget)
    # With a device, the components are not the host's phases.
    if phases is None or steps is None or budget is None or budget.has_device:
        return 0.0
    rest = set(phases.covariance_ns2) - _phases_of(components)
    variance = sum(phases.covariance_ns2[a][b] for a in rest for b in rest)
    error = NORMAL_95 * math.sqrt(max(0.0, variance) / max(1, steps.count))
    ordered = sorted(steps.durations_ns)
    quick = ordered[int(QUICK_FRAC * len(ordered))] if ordered else 0
    return min(error, max(0.0, steps.mean_ns - quick))


def _phases_of(components: tuple[str, ...]) -> set[str]:
    """The phases that make up these budget components."""
    return {"data_wait" if c in DATA_WAIT else phase_of_component(c) for c in components}


def _speedup(low: int, high: int, budget: Budget | None, error: float) -> Speedup | None:
    """The step shrinks by the recoverable share and the rest stays (Amdahl). Unless a device is the
    limit, the rest gets shorter at the high end: tdiag's hooks are gone, it may get faster (not
    seen with a device), it is only known within its sampling ``error`` (ns; 0 with a device), and
    two runs differ (counted up to what goes). The last three are independent: the root of the sum
    of their squares (JCGM 100:2008, 5.1.2)."""
    if budget is None:
        return None
    error = min(error, high, budget.step_ns - high)
    rest = budget.step_ns - high
    freed = 0.0 if budget.has_device else FREED_FRAC * rest * high / budget.step_ns
    differs = min(RUNS_DIFFER_FRAC * rest, high)
    shorter = min(rest, math.hypot(error, freed, differs) + HOOKS_NS)
    device_limits = budget.has_device and held(budget, *DEVICE_BUSY) >= held(budget, *ISSUING)
    most = high if device_limits else high + shorter
    return Speedup(*(round(_faster(ns, budget), 3) for ns in (low, most)))


def _faster(ns: float, budget: Budget) -> float:
    """How many times as fast the step is without ``ns`` of it (Amdahl)."""
    return 1 / (1 - min(ns / budget.step_ns, MAX_RECOVERABLE_FRAC))


def _place(at: Place | None) -> Place | None:
    """The place to change; None for a line of an installed package."""
    mine = at is not None and is_user_file(at.file) and at.line > 0
    return at if mine else None


def run_rules(
    evidence: Evidence, rules: Iterable[Rule] | None = None
) -> tuple[list[Finding], list[Abstained]]:
    """Every rule over this evidence: findings, best first, and the rules that abstained.

    A rule abstains if a required kind is absent (with the reason from ``evidence.missing``), if it
    raises Abstain, or if it fails. A finding of a rule with ``only_if`` is kept only if no other
    finding matters.
    """
    findings: list[Finding] = []
    unless_others: list[Finding] = []
    abstained: list[Abstained] = []
    checked = all_rules() if rules is None else tuple(rules)
    for rule in checked:
        result = run_rule(rule, evidence)
        if isinstance(result, Abstained):
            abstained.append(result)
        elif result is not None:
            (unless_others if rule.only_if else findings).append(result)
    budget = evidence.get(Budget)
    if budget is None or all(_minor(finding, budget.step_ns) for finding in findings):
        findings += unless_others
    after = {rule.code: dict(rule.after) for rule in checked}
    ranked = rank(findings, after)
    names = {finding.code: finding.name for finding in findings}
    return [_saying_what_comes_first(f, after[f.code], names) for f in ranked], abstained


def _saying_what_comes_first(
    finding: Finding, others: Mapping[str, str], names: Mapping[str, str]
) -> Finding:
    """If a fix would hide another finding's cause, it says so, whichever gains more."""
    first = [(code, why) for code, why in others.items() if code in names]
    if not first:
        return finding
    said = " ".join(f"First {code} {names[code]}: {why}." for code, why in first)
    fix = msgspec.structs.replace(finding.fix, text=f"{finding.fix.text} {said}")
    return msgspec.structs.replace(finding, fix=fix)


def _minor(finding: Finding, step_ns: int) -> bool:
    """Whether its gain is too small to explain the step."""
    return finding.at_best_ns < NOTICEABLE_FRAC * step_ns


def rank(
    findings: Iterable[Finding], after: Mapping[str, Mapping[str, str]] | None = None
) -> list[Finding]:
    """By recoverable time per step, largest first, then the advisories, those about how well the
    model learns (``LEARNING``) last.

    ``after``: code → codes whose cause its fix would hide. Such a cause comes first if it
    gains at least ``COMES_FIRST_FRAC`` as much of the same time.
    """
    ranked = sorted(
        findings,
        key=lambda f: (f.advisory, -f.recoverable_ns, f.code.startswith(LEARNING), f.code),
    )
    for cause in list(ranked):
        hiding = [i for i, f in enumerate(ranked) if _hides(f, cause, after or {})]
        if hiding and hiding[0] < ranked.index(cause):
            ranked.remove(cause)
            ranked.insert(hiding[0], cause)
    return ranked


def _hides(finding: Finding, cause: Finding, after: Mapping[str, Mapping[str, str]]) -> bool:
    """A change of the code hides only what the code there does; a setting may hide it anywhere, and
    a cause that a setting ends is ended everywhere."""
    one, other = finding.location, cause.location
    in_code = not (finding.fix.intervention or cause.fix.intervention)
    return (
        not (in_code and one and other and not same_function(one, other))
        and cause.code in after.get(finding.code, {})
        and bool(set(cause.components) & set(finding.components))
        and cause.recoverable_ns >= COMES_FIRST_FRAC * finding.recoverable_ns
    )
