"""The class of the verdict, by what each class costs, and how far it is from the runner-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tdiag.diagnose.costs import Costs, family_of
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC, Threshold
from tdiag.rules.thresholds import HIGH_FRAC

TIE_FRAC = Threshold(
    0.75,
    "of the larger cost",
    "Heuristic: costs within a quarter of each other are a tie, because predicted gains are"
    " ranges at least that wide.",
)


@dataclass(frozen=True)
class Choice:
    """A class and its share of the step, 0..1. ``confidence``: only from the distance to the
    runner-up."""

    cls: str
    share: float
    confidence: float
    runner_up: str | None
    runner_up_share: float = 0.0


def choose(evidence: Evidence, costs: Costs, findings: Sequence[Finding]) -> Choice:
    """The family of waste that costs most, if it costs enough; otherwise ``compute``, or
    ``unknown`` where more is unexplained. ``findings`` are ranked, best first."""
    families = _families(costs)
    cost = max(families.values(), default=0.0)
    least = HIGH_FRAC if costs.compute >= MAJORITY_FRAC * costs.step_ns else NOTICEABLE_FRAC
    # The high end, as for the other classes that the budget does not measure.
    lead = max(
        (f.at_best_ns for f in findings[:1] if f.cls == "compute" and not f.advisory), default=0.0
    )
    rival = cost if _shown(costs, families) else TIE_FRAC * cost
    small = max(cost, costs.unexplained) < least * costs.step_ns
    if small or max(rival, costs.unexplained) < lead:
        return _choice(costs, "compute", costs.compute)
    if costs.unexplained > cost:
        return _choice(costs, "unknown", costs.unexplained)
    family = _of_a_tie(costs, families, TIE_FRAC * cost, evidence, findings)
    members = costs.family(family)
    cls = max(members, key=lambda name: members[name])
    for finding in findings[:1]:  # the first finding decides between members of about the same cost
        if members.get(costs.class_of(finding), 0.0) >= TIE_FRAC * members[cls]:
            cls = costs.class_of(finding)
    return _choice(costs, cls, members[cls])


def _shown(costs: Costs, families: dict[str, float]) -> bool:
    """Whether the budget shows most of what the largest family costs. What only findings tell of is
    no more certain than the first finding, which wins a tie."""
    largest = max(families, key=lambda name: families[name], default="")
    measured = sum(ns for cls, ns in costs.measured.items() if family_of(cls) == largest)
    return measured > MAJORITY_FRAC * families.get(largest, 0.0)


def surely(evidence: Evidence, costs: Costs, findings: Sequence[Finding]) -> Choice | None:
    """Of a measured step that computes: the class of the first finding, if its fix saves a
    noticeable share at the low end, too. Waiting for data and copies keep ``HIGH_FRAC``, which was
    made for them."""
    finding = next(iter(findings), None)
    if evidence.get(Steps) is None or finding is None or finding.advisory or not finding.speedup:
        return None
    cls = costs.class_of(finding)
    cost = costs.by_class.get(cls, 0.0)
    saved = 1 - 1 / finding.speedup.low
    apart = family_of(cls) in _families(costs).keys() - {"input", "h2d"}
    if not apart or min(cost / costs.step_ns, saved) < NOTICEABLE_FRAC:
        return None
    return _choice(costs, cls, cost, sure=True)


def _families(costs: Costs) -> dict[str, float]:
    families = costs.families()
    for cls in costs.guessed:  # a guess must be most of the step
        if families[family_of(cls)] < MAJORITY_FRAC * costs.step_ns:
            del families[family_of(cls)]
    return families


def _of_a_tie(
    costs: Costs,
    families: dict[str, float],
    least: float,
    evidence: Evidence,
    findings: Sequence[Finding],
) -> str:
    """The family of the verdict among those that cost about as much as the most expensive.

    The first finding decides. In a bare trace the host family does not win a tie, because the
    profiler slows only the issuing of work.
    """
    tied = {name: ns for name, ns in families.items() if ns >= least}
    if evidence.get(Steps) is None and len(tied) > 1:
        tied.pop("host", None)
    for finding in findings[:1]:
        if not finding.advisory and family_of(costs.class_of(finding)) in tied:
            return family_of(costs.class_of(finding))
    return max(tied, key=lambda name: tied[name])


def _choice(costs: Costs, cls: str, cost: float, sure: bool = False) -> Choice:
    """Confidence: 0.5 against an equal rival, 1 without one.

    Rivals are the other families and the other members of the same family. Compute is a rival only
    if the waste is neither high nor ``sure``.
    """
    family = family_of(cls)
    rivals = {name: ns for name, ns in costs.families().items() if name != family}
    named = {_largest(costs, name): ns for name, ns in rivals.items()}
    named |= {name: ns for name, ns in costs.family(family).items() if name != cls}
    whole = costs.families().get(family, cost)
    if cls == "unknown" or (cls != "compute" and whole < HIGH_FRAC * costs.step_ns):
        named["compute"] = min(costs.compute, costs.step_ns - cost)  # which may have it within
    odds = [whole / (whole + ns) for ns in rivals.values() if ns]
    odds += [cost / (cost + ns) for name, ns in costs.family(family).items() if name != cls and ns]
    if "compute" in named and not sure:
        odds.append(whole / (whole + costs.compute))
    rival = max(named, key=lambda name: named[name], default=None)
    share = named[rival] / costs.step_ns if rival else 0.0
    shown = rival if share >= NOTICEABLE_FRAC else None
    return Choice(cls, min(1.0, cost / costs.step_ns), min(odds, default=1.0), shown, share)


def _largest(costs: Costs, family: str) -> str:
    members = costs.family(family)
    return max(members, key=lambda name: members[name])
