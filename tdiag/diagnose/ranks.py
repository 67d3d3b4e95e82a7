"""The rank that the others wait for: its verdict names it, what they wait, and its own cause."""

from __future__ import annotations

import statistics

import msgspec

from tdiag.diagnose.costs import MODERATE_FRAC
from tdiag.diagnose.model import Verdict
from tdiag.evidence.device import Ranks, RankTime
from tdiag.rules.base import duration

# Components that say nothing of a rank's own work: communication is what the ranks are compared by.
_NOT_ITS_OWN = ("comm", "unattributed")
# "it spends 40 ms more …"
_WORDS = {
    "data_wait": "waiting for data",
    "h2d": "copying to the device",
    "d2h": "copying to the host",
    "sync": "synchronising",
    "alloc": "allocating device memory",
    "launch": "launching work",
    "compute": "computing",
    "optimizer": "in the optimizer with the device idle",
    "other": "in host work without a name",
}


def of_ranks(verdict: Verdict, ranks: Ranks | None) -> Verdict:
    """``verdict``, of the straggler's own step, with the straggler named; unchanged without one.

    A straggler that merely computes longer is the bottleneck as such: its class is ``straggler``
    and its share what the others wait for it ÷ its step. Any other cause stays the class.
    """
    straggler = ranks.straggler() if ranks else None
    if ranks is None or straggler is None or ranks.waited_ns is None:
        return verdict
    others = [rank for rank in ranks.ranks if rank.rank != straggler.rank]
    them = "the other rank wait" if len(others) == 1 else f"the other {len(others)} ranks wait"
    summary = (
        f"Rank {straggler.rank} makes {them} {duration(ranks.waited_ns)} a step"
        f"{_longer(straggler, others)}. In rank {straggler.rank}, {verdict.summary}"
    )
    if verdict.cls != "compute":
        return msgspec.structs.replace(verdict, summary=summary)
    return msgspec.structs.replace(
        verdict,
        cls="straggler",
        share=round(min(1.0, ranks.waited_ns / straggler.step_ns), 4),
        runner_up="compute",
        summary=summary.replace(": healthy", ""),
        healthy=False,
    )


def _longer(straggler: RankTime, others: list[RankTime]) -> str:
    """The component that takes the straggler longest beyond the median of the others; "" where
    none takes noticeably longer."""
    measured = [rank.components_ns for rank in others if rank.components_ns]
    if not measured:
        return ""
    beyond = {
        name: ns - statistics.median(parts.get(name, 0.0) for parts in measured)
        for name, ns in straggler.components_ns.items()
        if name not in _NOT_ITS_OWN
    }
    name = max(beyond, key=lambda name: beyond[name], default="")
    if not name or beyond[name] < MODERATE_FRAC * straggler.step_ns:
        return ""
    return (
        f": it spends {duration(beyond[name])} more {_WORDS.get(name, f'in {name}')} than they do"
    )
