"""Several ranks of one job: whose budget is what, and whom the others wait for."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from tdiag.evidence.device import Communication, DeviceTime, Ranks, RankTime, TracedSteps
from tdiag.evidence.store import Evidence


def merge_ranks(by_rank: Mapping[int, Evidence]) -> Evidence:
    """The evidence of the job: that of the rank the others wait for (its time is everybody's),
    else of the lowest rank, with :class:`Ranks` beside it. ``by_rank`` must not be empty."""
    ranks = compare_ranks(by_rank)
    chosen = min(by_rank) if ranks.slowest is None else ranks.slowest
    evidence = by_rank[chosen]
    if len(by_rank) > 1:
        evidence.add(ranks)
        evidence.notes.append(f"the report shows rank {chosen} of {len(by_rank)} traced ranks")
    return evidence


def compare_ranks(by_rank: Mapping[int, Evidence]) -> Ranks:
    ranks = tuple(_rank_time(rank, evidence) for rank, evidence in sorted(by_rank.items()))
    known = {r.rank: r.communication_ns for r in ranks if r.communication_ns is not None}
    if len(known) < 2:
        return Ranks(ranks=ranks, slowest=None, waited_ns=None)
    slowest = min(known, key=lambda rank: known[rank])
    others = [ns for rank, ns in known.items() if rank != slowest]
    return Ranks(ranks=ranks, slowest=slowest, waited_ns=statistics.median(others) - known[slowest])


def _rank_time(rank: int, evidence: Evidence) -> RankTime:
    steps, device = evidence.get(TracedSteps), evidence.get(DeviceTime)
    communication = evidence.get(Communication)
    return RankTime(
        rank=rank,
        step_ns=device.step_ns if device else float(steps.mean_ns) if steps else 0.0,
        components_ns=device.components_ns if device else {},
        communication_ns=communication.total_ns if communication else None,
    )
