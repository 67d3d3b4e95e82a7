"""What every format says about a diagnosis, decided in one place."""

from __future__ import annotations

from tdiag.model.diagnosis import Diagnosis, Finding, Measure, Verdict
from tdiag.report.text import inert
from tdiag.report.words import verdict_class
from tdiag.units import (
    NO_GAIN,
    between,
    duration,
    faster,
    only_from_below,
    percent,
    plural,
    quantity,
)

NO_SHARE = ("unknown", "no_device_activity")  # verdicts without a meaningful share of the step
_INPUT = {"io", "cpu", "input", "loader"}  # kinds of waiting for data
# The verdict's own limit between a moderate bottleneck and none (docs/verdict.md): 5 %.
_WORTH_NAMING = 1.05
LOW_CONFIDENCE = 0.5  # below it the verdict is more likely wrong than right
_FEW_STEPS = 20  # with fewer, fewer than two steps exceed the 90th percentile
_MUCH_FRAC = 0.1  # of the step, unattributed: as much as a verdict's class may have
_UNIT_SUFFIXES = ("_ns", "_bytes", "_frac")


def headline(diagnosis: Diagnosis) -> tuple[str, str]:
    """The class in plain words, and its share: ``("I/O-bound", "62% of the step")``."""
    verdict = diagnosis.verdict
    title = inert(verdict_class(verdict.cls)) + (" and healthy" if verdict.healthy else "")
    whole = "time" if diagnosis.watched else "step"
    share = "" if verdict.cls in NO_SHARE else f"{percent(verdict.share)} of the {whole}"
    return title, share


def ranked(diagnosis: Diagnosis) -> list[Finding]:
    """The findings with a measured cost, in the order of the diagnosis (largest gain first)."""
    return [f for f in diagnosis.findings if not f.advisory]


def advisories(diagnosis: Diagnosis) -> list[Finding]:
    return [f for f in diagnosis.findings if f.advisory]


def best(diagnosis: Diagnosis) -> Finding | None:
    """The finding to act on first: the best-ranked one that predicts a gain.

    If the verdict names a waste, only a fix for that waste qualifies; the rest of the ranking
    follows below. With any other verdict the gain must be worth the headline. A fix that is as
    likely to cost as to gain never qualifies.
    """
    verdict = diagnosis.verdict
    family = _INPUT if verdict.cls in _INPUT else {verdict.cls}
    named = verdict.cls not in (*NO_SHARE, "compute")
    for finding in ranked(diagnosis):
        wins = finding.wins
        if wins is None or not finding.recoverable_ns:
            continue
        if finding.cls in family or (not named and wins.high >= _WORTH_NAMING):
            return finding
    return None


def gain_words(finding: Finding) -> str:
    """``1.85× faster, measured`` or the predicted range; "" without either."""
    if found := finding.measured:
        won = f"{found.speedup:.2f}× faster" if found.answer == "faster" else found.answer
        return f"{won}, measured"
    return f"{faster(finding.speedup.low, finding.speedup.high)} faster" if finding.speedup else ""


def why(finding: Finding, diagnosis: Diagnosis) -> str:
    """The predicted gain in time per step and the basis of the prediction; or what a trial
    measured, with the earlier prediction; "" without either."""
    if found := finding.measured:
        ratio = f"{found.speedup:.2f}× [{found.low:.2f}, {found.high:.2f}]"
        said = (
            f"Saves about {duration(finding.recoverable_ns)} a step"
            if finding.wins
            else ("No gain measured" if found.answer == "no effect" else "Costs more than it wins")
        )
        before = finding.speedup
        predicted = f"; predicted: {faster(before.low, before.high)}" if before else ""
        return f"{said}: {ratio}, measured by `tdiag try`{predicted}."
    if finding.speedup is None:
        return ""
    saved, costs = f"about {duration(finding.recoverable_ns)}", ""
    if diagnosis.step:
        # Step time now ÷ step time then is the speed-up, so this is the time that the fix removes.
        ends = finding.speedup.low, finding.speedup.high
        low, high = (diagnosis.step.mean_ns * (1 - 1 / x) for x in ends)
        saved = between(low, high) if ends[0] >= NO_GAIN else f"up to {duration(high)}"
        if only_from_below(*ends):
            saved = f"at least {duration(low)}"
        costs = f", or costs up to {duration(-low)}" if ends[0] < 1 else ""
    reason = finding.why_gain[:1].upper() + finding.why_gain[1:]
    return f"Saves {saved} a step{costs}. {reason}".rstrip()


def doubtful(verdict: Verdict) -> bool:
    """Whether the verdict has low confidence."""
    return verdict.cls not in NO_SHARE and verdict.confidence < LOW_CONFIDENCE


def doubts(diagnosis: Diagnosis) -> str:
    """What lowers the confidence, in words."""
    found = [note.text for note in diagnosis.notes if note.code == "crowded-machine"]
    if diagnosis.step and diagnosis.step.count < _FEW_STEPS:
        found.append(f"only {plural(diagnosis.step.count, 'clean step')}")
    lost = {c.component: c.ns for c in diagnosis.budget}.get("unattributed", 0)
    if diagnosis.step and lost >= _MUCH_FRAC * diagnosis.step.mean_ns:
        found.append(f"{percent(lost / diagnosis.step.mean_ns)} of the step is unattributed")
    if sources := [name for names in failed(diagnosis).values() for name in names]:
        found.append(f"missing evidence ({', '.join(sources)})")
    if not found and diagnosis.verdict.runner_up:
        found.append(f"{verdict_class(diagnosis.verdict.runner_up)} is about as likely")
    return "; ".join(found) or "step times vary, or the cause was inferred and not measured"


def measure_name(measure: Measure) -> str:
    """The name of a measurement, without the unit that its value already shows."""
    name = measure.name
    for suffix in _UNIT_SUFFIXES:
        if name.endswith(suffix):
            name = name.removesuffix(suffix).replace("_", " ")
    return inert(name)


def measure_value(measure: Measure) -> str:
    if isinstance(measure.value, str):  # a setting that the script did not set is None
        return "not set" if measure.value == "None" else inert(measure.value)
    return inert(" ".join(quantity(measure.value, measure.unit))).strip().replace(" %", "%")


def failed(diagnosis: Diagnosis) -> dict[str, list[str]]:
    """Why evidence is missing → the sources that are missing for this reason."""
    reasons: dict[str, list[str]] = {}
    for source, capture in diagnosis.capture.items():
        if capture.state == "failed":
            reasons.setdefault(capture.why or "no reason given", []).append(source)
    return reasons


def what_to_do(diagnosis: Diagnosis) -> str:
    """What to do about a run without steps; "" for others, and if the program itself failed."""
    if diagnosis.step or diagnosis.watched or diagnosis.environment.get("exit_code"):
        return ""
    return "let the script run at least a dozen training steps, then run it again."


def unchecked(diagnosis: Diagnosis) -> list[tuple[str, list[str]]]:
    """The missing evidence and the codes of the rules that needed it, most frequent first."""
    groups: dict[str, list[str]] = {}
    for rule in diagnosis.abstained:
        groups.setdefault(rule.missing, []).append(inert(rule.code, 12))
    return sorted(groups.items(), key=lambda kv: -len(kv[1]))
