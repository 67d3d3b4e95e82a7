"""The rank that the others wait for, and the work that makes it late, for TD902 and the verdict."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tdiag.evidence.machine import Environment
from tdiag.evidence.ranks import Ranks, RankTime
from tdiag.rules.base import Abstain
from tdiag.rules.thresholds import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.units import duration, percent

# Components that say nothing about a rank's own work: communication is what ranks are compared by.
NOT_ITS_OWN = ("comm", "unattributed")
# "it spends 40 ms more ..."; the phases of a run on the CPU come after those of a device's budget.
_WORDS = {
    "data_wait": "waiting for data",
    "h2d": "copying to the device",
    "d2h": "copying to the host",
    "sync": "synchronising",
    "alloc": "allocating device memory",
    "launch": "launching work",
    "compute": "computing",
    "optimizer": "in the optimizer",
    "other": "in unnamed host work",
    "prepare": "between its steps",
    "evaluation": "evaluating",
    "checkpoint": "saving checkpoints",
    "gc": "collecting garbage",
}


@dataclass(frozen=True)
class Straggler:
    """``cause``: the budget component in which ``rank`` exceeds the median of the ``others`` most,
    by ``longer_ns`` per step. ``waited_ns``: the time the others wait for it, per step."""

    rank: RankTime
    others: tuple[RankTime, ...]
    waited_ns: float
    cause: str
    longer_ns: float

    @property
    def waited_frac(self) -> float:
        """Waiting time of the others ÷ this rank's step, at most 1."""
        return min(1.0, self.waited_ns / self.rank.step_ns)

    @property
    def sentence(self) -> str:
        one = len(self.others) == 1
        others = "the other rank" if one else f"the other {len(self.others)} ranks"
        words = _WORDS.get(self.cause, f"in {self.cause.replace('_', ' ')}")
        return (
            f"Rank {self.rank.rank} makes {others} wait {duration(self.waited_ns)} per step"
            f" ({percent(self.waited_frac)}): it spends {duration(self.longer_ns)} more {words}"
            " than they do."
        )

    def of_the_others(self, component: str) -> float:
        """Median of the others with a known time, ns per step."""
        return _median(self.others, component)


def abstain_unless_alone(environment: Environment | None, lacking: str) -> None:
    """Abstain for what is ``lacking``, unless the job is known to have a single rank."""
    if environment is None or environment.world_size != 1:
        raise Abstain(lacking)


def straggler_of(ranks: Ranks) -> Straggler | None:
    """None if no rank waits noticeably.

    Abstains where communication was not measured, and where the rank's own extra work does not
    explain most of the others' wait: then traces may begin at different times, or ranks do
    different work by design.
    """
    if ranks.slowest is None or ranks.waited_ns is None:
        raise Abstain("the communication of fewer than two ranks was measured")
    late = next(rank for rank in ranks.ranks if rank.rank == ranks.slowest)
    if not late.step_ns or ranks.waited_ns < NOTICEABLE_FRAC * late.step_ns:
        return None
    others = tuple(rank for rank in ranks.ranks if rank.rank != late.rank)
    if not late.components_ns or not any(rank.components_ns for rank in others):
        raise Abstain("device activity was traced in fewer than two ranks")
    beyond = {
        name: took - _median(others, name)
        for name, took in late.components_ns.items()
        if name not in NOT_ITS_OWN
    }
    cause = max(beyond, key=lambda name: beyond[name], default="")
    own = _own(late) - statistics.median(_own(rank) for rank in others if rank.components_ns)
    if not cause or min(own, beyond[cause]) < MAJORITY_FRAC * ranks.waited_ns:
        raise Abstain(
            f"rank {late.rank} communicates least, but its extra work does not explain most of the"
            " time that the others wait"
        )
    return Straggler(late, others, ranks.waited_ns, cause, beyond[cause])


def waits_by_turns(ranks: Ranks, step_ns: float) -> str:
    """How long the ranks wait for a different rank from step to step, in a sentence; empty if that
    is unknown, or not noticeable beside the device's step."""
    waits = ranks.by_turns_ns
    if waits is None or waits < NOTICEABLE_FRAC * step_ns:
        return ""
    return (
        f"The ranks wait for each other at least {duration(waits)} per step"
        f" ({percent(waits / step_ns)}), and which rank is late changes from step to step."
    )


def _own(rank: RankTime) -> float:
    return sum(took for name, took in rank.components_ns.items() if name not in NOT_ITS_OWN)


def _median(ranks: tuple[RankTime, ...], component: str) -> float:
    measured = [rank.components_ns for rank in ranks if rank.components_ns]
    return statistics.median(parts.get(component, 0.0) for parts in measured)
