"""For several ranks, the verdict names the rank that the others wait for."""

from __future__ import annotations

import msgspec

from tdiag.diagnose.costs import undisturbed
from tdiag.diagnose.verdict import GUESS_CONFIDENCE
from tdiag.evidence.ranks import LateRank, Ranks
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Component, Finding, RankStep, Verdict
from tdiag.rules.base import DATA_WAIT, Abstain, where
from tdiag.rules.stragglers import MACHINES, Straggler, changing_waits, straggler_of

STRAGGLER = "TD902"


def known_straggler(evidence: Evidence) -> Straggler | None:
    """The straggler; None also if it is unknown (then TD902's abstention gives the reason)."""
    ranks = evidence.get(Ranks)
    try:
        return straggler_of(ranks, evidence.get(LateRank)) if ranks else None
    except Abstain:
        return None


def rank_steps(evidence: Evidence) -> tuple[RankStep, ...]:
    """The step of each rank, by rank; empty if a single process trained."""
    ranks, straggler = evidence.get(Ranks), known_straggler(evidence)
    late = straggler.rank.rank if straggler else None
    return tuple(
        RankStep(
            rank=found.rank,
            step_ns=round(found.step_ns),
            communication_ns=(
                None if found.communication_ns is None else round(found.communication_ns)
            ),
            components=tuple(
                Component(name, round(ns)) for name, ns in found.components_ns.items()
            ),
            late=found.rank == late,
        )
        for found in (ranks.ranks if ranks else ())
    )


def with_its_first_finding(findings: list[Finding], evidence: Evidence) -> list[Finding]:
    """The straggler's finding also names the first of that rank's other findings about the part of
    the step in which the rank is late. If the cause is more data or a slow machine, no other
    finding is named."""
    straggler = known_straggler(evidence)
    if straggler is None or straggler.why in ("data", *MACHINES):
        return findings
    parts = DATA_WAIT if straggler.cause == "data_wait" else (straggler.cause,)
    first = next((f for f in findings if not f.advisory and set(parts) & set(f.components)), None)
    if first is None:
        return findings
    said = f" The first finding about it: {first.code} {first.name}{where(first.location)}."
    return [_naming(f, said, first) if f.code == STRAGGLER else f for f in findings]


def _naming(straggler: Finding, said: str, first: Finding) -> Finding:
    fix = msgspec.structs.replace(straggler.fix, text=straggler.fix.text + said)
    location = straggler.location or first.location
    return msgspec.structs.replace(straggler, fix=fix, location=location)


def of_ranks(verdict: Verdict, evidence: Evidence, step_ns: float | None = None) -> Verdict:
    """The straggler's own ``verdict``, with the straggler named. Without a straggler the verdict is
    unchanged, except that communication which is mostly waiting is called waiting. ``step_ns``:
    the step whose communication was measured.

    If the straggler only computes longer, the class is ``straggler`` and the share is the waiting
    time of the others ÷ its step. Any other cause keeps its class. A rank that was counted to have
    more data or more work only computes longer even if it is unknown how much of that is work, or
    if another cause takes less of its step than the others wait.
    """
    straggler = known_straggler(evidence)
    if straggler is None:
        return _changing(verdict, evidence.get(Ranks), step_ns)
    summary = f"{straggler.sentence} In rank {straggler.rank.rank}, {verdict.summary}"
    counted = straggler.why in ("data", "work")
    if verdict.cls == "unknown" and verdict.runner_up == "compute" and counted:
        sure = min(GUESS_CONFIDENCE, undisturbed(evidence))
        verdict = msgspec.structs.replace(verdict, cls="compute", confidence=round(sure, 2))
    lesser = counted and verdict.cls != "unknown" and verdict.share < straggler.waited_frac
    if verdict.cls != "compute" and not lesser:
        return msgspec.structs.replace(verdict, summary=summary)
    return msgspec.structs.replace(
        verdict,
        cls="straggler",
        share=round(straggler.waited_frac, 4),
        runner_up=verdict.cls,
        summary=summary.replace(": healthy", ""),
        healthy=False,
    )


def _changing(verdict: Verdict, ranks: Ranks | None, step_ns: float | None) -> Verdict:
    if verdict.cls != "comm" or ranks is None or step_ns is None:
        return verdict
    sentence = changing_waits(ranks, step_ns)
    if not sentence:
        return verdict
    return msgspec.structs.replace(verdict, summary=f"{sentence} {_begun(verdict.summary)}")


def _begun(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
