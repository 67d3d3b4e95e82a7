"""What trials prove or refute of a diagnosis: measured gains replace predictions, and the verdict
follows the measurement."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from tdiag.diagnose.choice import TIE_FRAC
from tdiag.diagnose.costs import family_of
from tdiag.diagnose.engine import rank
from tdiag.diagnose.together import together
from tdiag.diagnose.verdict import WORDS
from tdiag.model.diagnosis import Diagnosis, Finding, MeasuredGain, Verdict, VerdictClass
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC, Threshold
from tdiag.model.trials import Trials, Tried
from tdiag.rules.catalogue import all_rules
from tdiag.rules.thresholds import HIGH_FRAC

# Class or family → the ceiling that leaves out its cost.
_CEILINGS = {
    "input": "ceiling.data",
    "python_loss": "ceiling.loss",
    "sync": "ceiling.reads",
    "eval": "ceiling.evaluation",
    "checkpoint": "ceiling.checkpoint",
    "h2d": "ceiling.copies",
    "comm": "ceiling.communication",
    "logging": "ceiling.logging",
}
# Ceilings that leave out only their own class can name it. (An expensive loss need not be Python; a
# read may be a print, and a print a read; ranks that exchange gradients also wait for the slowest;
# at a copy the host may be waiting for the device.)
_CLASS_OF: dict[str, VerdictClass] = {
    "ceiling.data": "input", "ceiling.evaluation": "eval", "ceiling.checkpoint": "checkpoint"
}  # fmt: skip
_LEFT_OUT = {
    "ceiling.data": "loading data",
    "ceiling.loss": "the loss",
    "ceiling.reads": "reading values back",
    "ceiling.evaluation": "evaluation",
    "ceiling.checkpoint": "saving checkpoints",
    "ceiling.copies": "copies to the device",
    "ceiling.communication": "exchanging gradients",
    "ceiling.logging": "logging",
}
PROVEN_CONFIDENCE = Threshold(
    0.95, "confidence", "By definition: the level of a trial's interval (tdiag.duel.estimate)."
)


def ceilings_of(verdict: Verdict) -> list[str]:
    """The ceilings that can prove or refute this verdict: for its class, then for the runner-up."""
    classes = [verdict.cls, *([verdict.runner_up] if verdict.runner_up else [])]
    return [name for name in dict.fromkeys(map(ceiling_of, classes)) if name]


def ceiling_of(cls: str) -> str:
    """The ceiling that leaves out the cost of this class or its family, or ""."""
    return _CEILINGS.get(cls) or _CEILINGS.get(family_of(cls), "")


def proven(diagnosis: Diagnosis, trials: Trials) -> Diagnosis:
    """The diagnosis with the results of its trials. Only clear answers change anything."""
    findings = tuple(_measured(f, diagnosis, trials) for f in diagnosis.findings)
    if any(f.measured for f in findings):
        after = {rule.code: dict(rule.after) for rule in all_rules()}
        findings = tuple(rank(findings, after))
    every_fix = together(findings, diagnosis.budget)
    known = replace(diagnosis, findings=findings, together=every_fix, trials=trials)
    return replace(known, verdict=_verdict(known, trials))


def _measured(finding: Finding, diagnosis: Diagnosis, trials: Trials) -> Finding:
    """The finding with its fix's own trial; a trial of several fixes belongs to no single
    finding."""
    wanted = _parts(finding.fix.intervention or "")
    one = next((t for t in trials.tried if _parts(t.change) == wanted), None)
    if one is None or one.answer not in ("faster", "slower", "no effect"):
        return finding
    won = one.answer == "faster"
    saved = 1 - 1 / one.speedup if won and diagnosis.step else 0.0
    step_ns = diagnosis.step.mean_ns if diagnosis.step else 0
    return replace(
        finding,
        measured=MeasuredGain(one.answer, one.speedup, one.low, one.high),
        recoverable_ns=round(saved * step_ns),
        # A gain that matters makes it more than an advisory (tdiag/diagnose/verdict.py: winnable).
        advisory=finding.advisory and not (won and one.low_frac >= NOTICEABLE_FRAC),
    )


def _part(ceiling: Tried) -> str:
    """The ceiling's name, without the function that it may take."""
    return ceiling.change.partition("=")[0]


def _parts(change: str) -> list[str]:
    return [part.strip() for part in change.split("+")]


def _verdict(diagnosis: Diagnosis, trials: Trials) -> Verdict:
    """The class that was measured to cost most, if that is clear; otherwise the verdict, with what
    the trials say about it."""
    verdict = diagnosis.verdict
    if verdict.healthy and not all(f.advisory for f in diagnosis.findings):
        verdict = replace(verdict, healthy=False,
                          summary=verdict.summary.replace(": healthy", ""))  # fmt: skip
    ceilings = {_part(t): t for t in trials.tried if t.ceiling and _part(t) in _LEFT_OUT}
    mine = ceilings.get(ceiling_of(verdict.cls))
    for name, other in ceilings.items():
        if other is not mine and name in _CLASS_OF and _exceeds(other, mine, verdict):
            return _instead(verdict, _CLASS_OF[name], other)
    saved = list(_saved_by_own(diagnosis, mine))
    surest = max(saved, key=lambda one: one.low, default=None)
    if surest is not None and surest.low_frac >= TIE_FRAC * verdict.share:
        sure = float(max(verdict.confidence, PROVEN_CONFIDENCE))
        summary = f"{verdict.summary}. Measured: {_saves(surest)}"
        return replace(verdict, proven=True, confidence=sure, summary=summary)
    if mine is None or verdict.cls == "unknown":
        return verdict
    if mine.answer == "no effect" and _refutable(diagnosis, mine):
        return replace(
            verdict, cls="unknown", confidence=0.0, healthy=False, runner_up=verdict.cls,
            summary=f"{verdict.summary}. But leaving out {_LEFT_OUT[_part(mine)]} has no effect,"
            " measured: the time goes to something that happens at the same time",
        )  # fmt: skip
    if mine.answer == "faster" and mine.high_frac < TIE_FRAC * verdict.share:
        return replace(verdict, summary=f"{verdict.summary}. Measured: {_saves(mine)}, less than"
                       " the budget says")  # fmt: skip
    return verdict


def _saved_by_own(diagnosis: Diagnosis, ceiling: Tried | None) -> Iterator[Tried]:
    """Trials that saved time of the verdict's own class: its ceiling, and fixes of its findings."""
    cls = diagnosis.verdict.cls
    fixes = [_parts(f.fix.intervention) for f in diagnosis.findings if f.fix.intervention
             and (f.cls == cls or family_of(f.cls) == family_of(cls) == "input")]  # fmt: skip
    for one in diagnosis.trials.tried if diagnosis.trials else ():
        if one.answer == "faster" and (one is ceiling or _parts(one.change) in fixes):
            yield one


def _exceeds(other: Tried, mine: Tried | None, verdict: Verdict) -> bool:
    """Whether this part certainly costs more than what the verdict names, by the verdict's own
    limits: to outweigh computing it must cost a fifth of the step, otherwise more than the
    verdict's class."""
    if other.answer != "faster":
        return False
    if verdict.cls == "compute":
        return other.low_frac >= HIGH_FRAC
    if verdict.cls in ("unknown", "no_device_activity"):
        return other.low_frac >= MAJORITY_FRAC
    mine_high = verdict.share
    if mine is not None and mine.answer in ("faster", "no effect"):
        mine_high = mine.high_frac
    return other.low_frac >= max(HIGH_FRAC, mine_high)


def _instead(verdict: Verdict, cls: VerdictClass, other: Tried) -> Verdict:
    was = WORDS.get(verdict.cls)
    said = f" (the budget says: {was}, {verdict.share:.0%})" if was else ""
    return Verdict(
        cls=cls,
        share=round(1 - 1 / other.speedup, 6),
        confidence=float(PROVEN_CONFIDENCE),
        runner_up=verdict.cls if was else None,
        summary=f"Measured: {_saves(other)}{said}",
        proven=True,
    )


def _refutable(diagnosis: Diagnosis, ceiling: Tried) -> bool:
    """Whether this ceiling leaves out everything that the verdict names: only waiting for a
    DataLoader is left out completely and in every step."""
    waits = sum(c.ns for c in diagnosis.budget if c.component.startswith("data_wait"))
    step_ns = diagnosis.step.mean_ns if diagnosis.step else 0
    return _part(ceiling) == "ceiling.data" and waits >= HIGH_FRAC * step_ns > 0


def _saves(one: Tried) -> str:
    """``leaving out loading data saves 52% [49%, 55%] of the step``."""
    what = f"leaving out {_LEFT_OUT[_part(one)]}" if one.ceiling else f"`{one.change}`"
    ends = f"{one.low_frac:.0%}, {one.high_frac:.0%}"
    return f"{what} saves {1 - 1 / one.speedup:.0%} [{ends}] of the step"
