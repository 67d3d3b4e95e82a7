"""Runs the rules over the evidence and ranks what they find by recoverable time per step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from tdiag.diagnose.replayed import replayed
from tdiag.evidence.kinds import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Abstained, Finding, Speedup
from tdiag.model.place import Place
from tdiag.places import is_user_file
from tdiag.rules.base import DATA_WAIT, NOISE_FLOOR_FRAC, Abstain, Found, Gain
from tdiag.rules.catalogue import Rule, all_rules, needs
from tdiag.rules.shares import NOTICEABLE_FRAC
from tdiag.units import only_from_below

# No fix leaves a step of no time; keeps 1 ÷ (1 − share) finite when a component is the step.
MAX_RECOVERABLE_FRAC = 0.99
# What other work on its core costs a step beside its own time: after 2 to 190 ms of it a whole
# training step took 0.1 to 2.2 ms longer than right after another step, up to 1 ÷ 0.43 as long
# (benchmarks/cold_caches.py, two processes, 54 pairs of six trainings of 0.8 to 7 ms and nine kinds
# of work, one thread, torch 2.13, 2-core machine). Nearly the most of it, for a high end; 1.05 ms
# at most after 3 ms. It is paid each time that the step comes back from such work: before each of
# four micro-batches it cost 1.1 to 4.1 ms, 0.6 to 4.5 times (twice in the median of seven pairs)
# what it cost before the first alone.
COLD_CACHES_NS = 2_000_000
COLD_CACHES_FRAC = 0.57
EVICTING_NS = 6_000_000
# What tdiag's own hooks cost a clean step, which nobody's training has: 37 to 65 µs
# (benchmarks/hooks.py, 0.5 to 7 ms a step).
HOOKS_NS = 40_000
# A cause leads over the cure that would hide it if it wins the larger half of that; ours.
COMES_FIRST_FRAC = 0.5


def run_rule(rule: Rule, evidence: Evidence) -> Finding | Abstained | None:
    """One rule: its finding, why it abstains, or None when its pattern is not there."""
    arguments = {}
    for name, (kind, required) in needs(rule).items():
        arguments[name] = evidence.get(kind)
        if required and arguments[name] is None:
            return Abstained(rule.code, rule.name, evidence.why_missing(kind))
    try:
        found = rule.check(**arguments)
        return None if found is None else _finding(rule, found, evidence)
    except Abstain as lacking:
        return Abstained(rule.code, rule.name, str(lacking))
    # Deliberately broad: one faulty rule must not cost the user the other rules' findings.
    except Exception as fault:
        what = f"the rule itself failed: {type(fault).__name__}: {fault}"
        return Abstained(rule.code, rule.name, what)


def _finding(rule: Rule, found: Found, evidence: Evidence) -> Finding | None:
    budget = evidence.get(Budget)
    if found.gain is not None and budget is not None:
        found = replace(found, gain=replayed(found.gain, evidence, budget))
    low, high = (0, 0) if found.gain is None else _capped(found.gain, budget)
    if found.gain is not None and budget and high < NOISE_FLOOR_FRAC * budget.step_ns:
        return None
    speedup = None
    if found.gain is not None:
        times = _times(_present(found.gain, budget), evidence)
        speedup = _speedup(low, high, budget, times)
    sure = speedup is not None and only_from_below(speedup.low, speedup.high)
    return Finding(
        code=rule.code,
        name=rule.name,
        cls=rule.cls,
        summary=found.summary,
        location=_place(found.at),
        evidence=found.evidence,
        recoverable_ns=max(0, low if sure else (low + high) // 2),
        at_best_ns=high,
        speedup=speedup,
        why_gain="" if found.gain is None else found.gain.why,
        fix=found.fix,
        advisory=found.gain is None,
        components=() if found.gain is None else _present(found.gain, budget),
    )


def _capped(gain: Gain, budget: Budget | None) -> tuple[int, int]:
    """The range, within what its budget components hold; Abstain without a budget."""
    if budget is None:
        raise Abstain("no step time was measured, so a gain cannot be set against it")
    ceiling = sum(budget.components_ns[name] for name in _present(gain, budget))
    high = min(max(0, round(gain.high_ns)), ceiling)
    return min(round(gain.low_ns), high), high


def _present(gain: Gain, budget: Budget | None) -> tuple[str, ...]:
    return tuple(name for name in gain.components if budget and name in budget.components_ns)


def _times(components: tuple[str, ...], evidence: Evidence) -> float:
    """How often a step comes back from what these components hold, as often as one of them is
    entered: for each micro-batch, or after every hundredth step only; once where it is not known.
    """
    phases = evidence.get(Phases)
    names = {"data_wait" if name in DATA_WAIT else name for name in components}
    known = [phases.counts[name] for name in names if name in phases.counts] if phases else []
    return max(known, default=1.0) or 1.0


def _speedup(low: int, high: int, budget: Budget | None, times: float) -> Speedup | None:
    """The step shrinks by the recoverable share, the rest stays as it is (Amdahl); at best, without
    a device, the rest finds its caches warm, and nobody watches it."""
    if budget is None:
        return None
    rest = budget.step_ns - high
    cold = times * COLD_CACHES_NS * min(1.0, high / times / EVICTING_NS)
    warmer = min(cold, COLD_CACHES_FRAC * rest)
    most = high if budget.has_device else high + warmer + min(HOOKS_NS, rest - warmer)
    shares = (min(ns / budget.step_ns, MAX_RECOVERABLE_FRAC) for ns in (low, most))
    return Speedup(*(round(1 / (1 - share), 3) for share in shares))


def _place(at: Place | None) -> Place | None:
    """Where to change something: no line of an installed package."""
    mine = at is not None and is_user_file(at.file) and at.line > 0
    return at if mine else None


def run_rules(
    evidence: Evidence, rules: Iterable[Rule] | None = None
) -> tuple[list[Finding], list[Abstained]]:
    """Every rule over this evidence: findings, best first, and the rules that could not check.

    A rule abstains when a kind it requires is absent (in ``evidence.missing``'s words), when it
    says so itself, and when it fails. A healthy statement is kept only if little is to be won.
    """
    findings: list[Finding] = []
    statements: list[Finding] = []
    abstained: list[Abstained] = []
    checked = all_rules() if rules is None else tuple(rules)
    for rule in checked:
        result = run_rule(rule, evidence)
        if isinstance(result, Abstained):
            abstained.append(result)
        elif result is not None:
            (statements if rule.only_if_clear else findings).append(result)
    budget = evidence.get(Budget)
    if budget is None or all(_minor(finding, budget.step_ns) for finding in findings):
        findings += statements
    after = {rule.code: dict(rule.after) for rule in checked}
    ranked = rank(findings, after)
    names = {finding.code: finding.name for finding in findings}
    return [_saying_what_comes_first(f, after[f.code], names) for f in ranked], abstained


def _saying_what_comes_first(
    finding: Finding, others: Mapping[str, str], names: Mapping[str, str]
) -> Finding:
    """A fix that would hide the cause of another finding says so, whichever wins more."""
    first = [(code, why) for code, why in others.items() if code in names]
    if not first:
        return finding
    said = " ".join(f"First {code} {names[code]}: {why}." for code, why in first)
    fix = msgspec.structs.replace(finding.fix, text=f"{finding.fix.text} {said}")
    return msgspec.structs.replace(finding, fix=fix)


def _minor(finding: Finding, step_ns: int) -> bool:
    """Too little to be won for a statement of health to be wrong beside it."""
    return finding.at_best_ns < NOTICEABLE_FRAC * step_ns


def rank(
    findings: Iterable[Finding], after: Mapping[str, Mapping[str, str]] | None = None
) -> list[Finding]:
    """By recoverable time per step, largest first; advisories after all of them.

    ``after``: of each code, the codes whose cause its cure would hide. Such a cause comes first
    where it wins at least ``COMES_FIRST_FRAC`` as much of the same time.
    """
    ranked = sorted(findings, key=lambda f: (f.advisory, -f.recoverable_ns, f.code))
    for cause in list(ranked):
        hiding = [i for i, f in enumerate(ranked) if _hides(f, cause, after or {})]
        if hiding and hiding[0] < ranked.index(cause):
            ranked.remove(cause)
            ranked.insert(hiding[0], cause)
    return ranked


def _hides(finding: Finding, cause: Finding, after: Mapping[str, Mapping[str, str]]) -> bool:
    return (
        cause.code in after.get(finding.code, {})
        and bool(set(cause.components) & set(finding.components))
        and cause.recoverable_ns >= COMES_FIRST_FRAC * finding.recoverable_ns
    )
