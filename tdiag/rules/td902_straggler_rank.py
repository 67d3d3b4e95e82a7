"""One rank makes the others wait

## What it measures
The communication of every traced rank. A collective ends for all ranks at once, so the rank that
the others wait for communicates least; what they wait is the median of their communication beyond
its own. What the rank itself does longer than the median of the others names the cause.

## Why it is slow
Every step ends when the last rank arrives. The devices of all others idle in the collective for as
long as it is late.

## What to do
Fix what takes this rank longer: its storage, its cores, its device's clock, or work that only this
rank does.

## How the gain is computed
None is claimed here: what the others wait is the time that the cause takes on this rank, which the
report's step and its findings are about.

## When this advice is wrong
Ranks that do different work by design (pipeline stages, parameter servers) arrive at different
times. It is reported only if one kind of work takes this rank longer by most of what the others
wait; a few traced steps may still have caught a rank in a slow moment.
"""

from __future__ import annotations

import statistics

from tdiag.diagnose.model import Fix
from tdiag.evidence.device import Ranks, RankTime, Syncs, Transfers
from tdiag.evidence.kinds import Environment, Location
from tdiag.evidence.store import Evidence
from tdiag.rules.base import Abstain, Found, duration, percent, where
from tdiag.rules.examples import rank_time, ranks_of
from tdiag.rules.measures import ns, text

CODE = "TD902"
NAME = "straggler-rank"
CLASS = "straggler"

# By definition of "mostly": the cause explains at least half of what the others wait.
MOST_FRAC = 0.5
# Components that say nothing of a rank's own work: communication is what ranks are compared by.
NOT_ITS_OWN = ("comm", "unattributed")

# What the rank does longer than the others, and what to do about that.
_CAUSES = {
    "data_wait": (
        "waiting for data",
        "compare its loader with the others': the size of its samples, its disk, its free cores",
    ),
    "h2d": ("copying to the device", "compare the bytes it copies, and whether they are pinned"),
    "d2h": ("copying to the host", "copy results on every k-th step only, or on the device"),
    "sync": (
        "synchronising",
        "take out what only this rank waits for, such as logging under `if rank == 0`",
    ),
    "alloc": ("allocating device memory", "compare its memory in use with the others'"),
    "compute": (
        "computing",
        "give it no more work than the others (sequence lengths, uneven batches), and compare its"
        " device's clock: nvidia-smi -q -d CLOCK,PERFORMANCE",
    ),
}
_ELSE = "compare its cores and what else runs on its host, and look for work that only it does"


def check(
    ranks: Ranks | None,
    environment: Environment | None,
    syncs: Syncs | None,
    transfers: Transfers | None,
) -> Found | None:
    if ranks is None:
        if environment is not None and environment.world_size == 1:
            return None
        raise Abstain("only one rank was traced")
    if ranks.slowest is None or ranks.waited_ns is None:
        raise Abstain("the communication of fewer than two ranks was measured")
    straggler = ranks.straggler()
    if straggler is None:
        return None
    others = [rank for rank in ranks.ranks if rank.rank != straggler.rank]
    cause, longer = _cause(straggler, others, ranks.waited_ns)
    words, advice = _CAUSES.get(cause, (f"in {cause.replace('_', ' ')}", _ELSE))
    at = _place(cause, syncs, transfers)
    them = "the other rank wait" if len(others) == 1 else f"the other {len(others)} ranks wait"
    number = straggler.rank
    return Found(
        summary=(
            f"Rank {number} makes {them} {duration(ranks.waited_ns)} a step"
            f" ({percent(ranks.waited_ns / straggler.step_ns)}): it spends {duration(longer)} more"
            f" {words} than they do."
        ),
        evidence=(
            text("rank", str(number), "trace"),
            ns("the others wait for it", ranks.waited_ns, "trace"),
            ns("its communication", straggler.communication_ns or 0.0, "trace"),
            ns(f"its {cause}", straggler.components_ns[cause], "trace"),
            ns(f"{cause}, median of the others", _median(others, cause), "trace"),
        ),
        fix=Fix(f"On rank {number}{where(at)}: {advice}.", "manual"),
        at=at,
    )


def _cause(straggler: RankTime, others: list[RankTime], waited_ns: float) -> tuple[str, float]:
    """The component that takes it longest beyond the median of the others, and by how much."""
    if not straggler.components_ns or not any(rank.components_ns for rank in others):
        raise Abstain("device activity was traced in fewer than two ranks")
    beyond = {
        name: took - _median(others, name)
        for name, took in straggler.components_ns.items()
        if name not in NOT_ITS_OWN
    }
    cause = max(beyond, key=lambda name: beyond[name], default="")
    own = _own(straggler) - statistics.median(_own(rank) for rank in others if rank.components_ns)
    if not cause or min(own, beyond[cause]) < MOST_FRAC * waited_ns:
        raise Abstain(
            f"rank {straggler.rank} communicates least, but its own work does not take it so much"
            " longer that this would explain most of what the others wait"
        )
    return cause, beyond[cause]


def _own(rank: RankTime) -> float:
    return sum(took for name, took in rank.components_ns.items() if name not in NOT_ITS_OWN)


def _median(ranks: list[RankTime], component: str) -> float:
    """Over the ranks whose device activity was traced; there is at least one."""
    measured = [rank.components_ns for rank in ranks if rank.components_ns]
    return statistics.median(parts.get(component, 0.0) for parts in measured)


def _place(cause: str, syncs: Syncs | None, transfers: Transfers | None) -> Location | None:
    """The line that costs most of it; the evidence beside the ranks is the straggler's own."""
    costs: list[tuple[float, Location | None]] = []
    if cause == "sync" and syncs is not None:
        costs = [(x.idle_after_ns, x.at) for x in syncs.syncs]
    elif transfers is not None:
        costs = [(x.exposed_ns, x.at) for x in transfers.copies if x.direction == cause]
    known = [(cost, at) for cost, at in costs if at is not None and cost]
    return max(known, key=lambda entry: entry[0])[1] if known else None


def fires() -> Evidence:
    """Rank 1 waits for data while the other two wait for it."""
    late = rank_time(1, 6, data_wait=54, compute=40, comm=6)
    return Evidence().add(
        ranks_of(rank_time(0, 60, compute=40, comm=60), late, rank_time(2, 58, compute=42, comm=58))
    )


def clear() -> Evidence:
    """Three ranks that arrive together: their communication is the network's."""
    return Evidence().add(ranks_of(*(rank_time(n, 58 + n, compute=40, comm=58) for n in range(3))))
