"""Building blocks of examples with several ranks."""

from __future__ import annotations

import statistics
from typing import Any

from msgspec.structs import replace

from tdiag.evidence.device import Ranks, RankTime
from tdiag.evidence.training import Ddp
from tdiag.rules.examples import MB, MS


def rank_time(rank: int, communication_ms: float | None, /, **components_ms: float) -> RankTime:
    """A rank whose step is made of these components, in ms."""
    parts = {name: ms * MS for name, ms in components_ms.items()}
    waits = None if communication_ms is None else communication_ms * MS
    step = sum(parts.values())
    return RankTime(rank=rank, step_ns=step, components_ns=parts, communication_ns=waits)


def ranks_of(*ranks: RankTime) -> Ranks:
    """The rank that communicates least, and how much longer the median of the others does."""
    known = sorted((r.communication_ns, r.rank) for r in ranks if r.communication_ns is not None)
    if len(known) < 2:
        return Ranks(ranks=ranks, slowest=None, waited_ns=None)
    waited = statistics.median(ns for ns, _ in known[1:]) - known[0][0]
    return Ranks(ranks=ranks, slowest=known[0][1], waited_ns=waited)


def late_by_turns(shortest_ms: float, by_turns_ms: float) -> Ranks:
    """Two ranks, neither of which is late in all steps."""
    exposed = shortest_ms + by_turns_ms
    two = (rank_time(n, exposed, compute=100 - exposed, comm=exposed) for n in range(2))
    return replace(ranks_of(*two), shortest_ns=shortest_ms * MS, by_turns_ns=by_turns_ms * MS)


def ddp_settings(**changes: Any) -> Ddp:
    """DDP's defaults for a model of 100 MB; gradients are reduced once per step."""
    plain = Ddp(
        find_unused_parameters=False,
        static_graph=False,
        gradient_as_bucket_view=False,
        bucket_bytes=25 << 20,
        comm_hook="",
        parameter_bytes=100 * MB,
        unused_parameters=0,
        backwards=1.0,
        synced=1.0,
    )
    return replace(plain, **changes)
