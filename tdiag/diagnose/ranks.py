"""The verdict of several ranks names the rank that the others wait for."""

from __future__ import annotations

import msgspec

from tdiag.evidence.ranks import Ranks
from tdiag.model.diagnosis import Component, RankStep, Verdict
from tdiag.rules.base import Abstain
from tdiag.rules.stragglers import Straggler, straggler_of, waits_by_turns


def known_straggler(ranks: Ranks | None) -> Straggler | None:
    """None also where it is unknown; the abstention of TD902 gives the reason."""
    try:
        return straggler_of(ranks) if ranks else None
    except Abstain:
        return None


def rank_steps(ranks: Ranks | None) -> tuple[RankStep, ...]:
    """The step of each rank, by rank; empty where one process trained."""
    straggler = known_straggler(ranks)
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


def of_ranks(verdict: Verdict, ranks: Ranks | None, step_ns: float | None = None) -> Verdict:
    """The straggler's own ``verdict``, with the straggler named. Without a straggler unchanged,
    except that communication which is mostly waiting is reported as waiting. ``step_ns``: the step
    whose communication was measured.

    A straggler that only computes longer has class ``straggler`` and as share the waiting time of
    the others ÷ its step. Any other cause stays the class.
    """
    straggler = known_straggler(ranks)
    if straggler is None:
        return _by_turns(verdict, ranks, step_ns)
    summary = f"{straggler.sentence} In rank {straggler.rank.rank}, {verdict.summary}"
    if verdict.cls != "compute":
        return msgspec.structs.replace(verdict, summary=summary)
    return msgspec.structs.replace(
        verdict,
        cls="straggler",
        share=round(straggler.waited_frac, 4),
        runner_up="compute",
        summary=summary.replace(": healthy", ""),
        healthy=False,
    )


def _by_turns(verdict: Verdict, ranks: Ranks | None, step_ns: float | None) -> Verdict:
    if verdict.cls != "comm" or ranks is None or step_ns is None:
        return verdict
    sentence = waits_by_turns(ranks, step_ns)
    if not sentence:
        return verdict
    return msgspec.structs.replace(verdict, summary=f"{sentence} {_begun(verdict.summary)}")


def _begun(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
