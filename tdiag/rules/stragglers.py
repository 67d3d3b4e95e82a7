"""The rank that the others wait for, and what makes it late (TD902 and the verdict)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tdiag.evidence.machine import Environment
from tdiag.evidence.ranks import CERTAIN_ERRORS, Beside, LateRank, Ranks, RankTime
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.rules.base import COMPUTE, Abstain, where
from tdiag.units import count, duration, percent, significant, size

# Components that do not reflect a rank's own work: communication is what ranks are compared by.
NOT_ITS_OWN = ("comm", "unattributed")
# "it spends 40 ms more ..."; the phases of a run on the CPU come after those of a device's budget.
_WORDS = {
    "data_wait": "waiting for data",
    "h2d": "copying to the device",
    "d2h": "copying to the host",
    "sync": "synchronising",
    "alloc": "allocating device memory",
    "cpu_ops": "computing on the CPU",
    "launch": "launching work",
    "compute": "computing",
    "optimizer": "in the optimizer",
    "other": "in unnamed host work",
    "prepare": "between its steps",
    "evaluation": "evaluating",
    "checkpoint": "saving checkpoints",
    "gc": "collecting garbage",
}

Why = Literal["", "data", "work", "alone", "speed", "cores"]
MACHINES = ("speed", "cores")  # reasons that are not in the script: they have no line


@dataclass(frozen=True)
class Straggler:
    """``cause``: the budget component in which ``rank`` exceeds the median of the ``others`` most,
    by ``longer_ns`` per step. ``waited_ns``: the time the others wait for it, per step.

    ``why``: it gets more data, has more work for as much data, runs alone a line that takes most of
    it, takes longer for the same work, or waits for a core; "" if unknown. ``because``: that reason
    as a sentence with numbers."""

    rank: RankTime
    others: tuple[RankTime, ...]
    waited_ns: float
    cause: str
    longer_ns: float
    why: Why = ""
    because: str = ""

    @property
    def waited_frac(self) -> float:
        """Waiting time of the others ÷ this rank's step, at most 1."""
        return min(1.0, self.waited_ns / self.rank.step_ns)

    @property
    def sentence(self) -> str:
        one = len(self.others) == 1
        others = "the other rank" if one else f"the other {len(self.others)} ranks"
        words = _WORDS.get(self.cause, f"in {self.cause.replace('_', ' ')}")
        waits = (
            f"Rank {self.rank.rank} makes {others} wait {duration(self.waited_ns)} per step"
            f" ({percent(self.waited_frac)})"
        )
        if self.why in ("data", "cores"):  # they lengthen every part of the step
            return f"{waits}. {self.because}"
        return (
            f"{waits}: it spends {duration(self.longer_ns)} more {words}"
            f" than they do. {self.because}"
        ).rstrip()

    def stands_out(self, line: Beside | None) -> bool:
        """Whether most of what this line takes longer is beyond the slow-down of the rest of its
        rank: cores that others use, too, make every line slower. True if it was not compared."""
        if line is None:
            return True
        own, usual = _own(self.rank), _usual(self.others)
        rest = max(1.0, (own - line.own) / max(usual - line.others, 1.0))
        return line.own - rest * line.others >= MAJORITY_FRAC * (line.own - line.others)

    def of_the_others(self, component: str) -> float:
        """Median of the others with a known time, ns per step."""
        return _median(self.others, component)


def abstain_unless_alone(environment: Environment | None, lacking: str) -> None:
    """Abstain because ``lacking`` is missing, unless the job is known to have a single rank."""
    if environment is None or environment.world_size != 1:
        raise Abstain(lacking)


def straggler_of(ranks: Ranks, about: LateRank | None = None) -> Straggler | None:
    """None if no rank waits noticeably. ``about``: the late rank's work, if known.

    Abstains if communication was not measured, and if the rank's own extra work does not explain
    most of the others' wait: then traces may begin at different times, or ranks do different work
    by design.
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
    usual = _usual(others)
    own = _own(late) - usual
    why: Why = ""
    because = ""
    if about is not None and about.rank == late.rank:
        alike = _slower_alike(late, others)
        why, because = _why(about, cause, own, usual, alike)
    explained = own if why else min(own, beyond.get(cause, 0.0))  # what was counted lengthens all
    if not cause or explained < MAJORITY_FRAC * ranks.waited_ns:
        raise Abstain(
            f"rank {late.rank} communicates least, but its extra work does not explain most of the"
            " time that the others wait"
        )
    return Straggler(late, others, ranks.waited_ns, cause, beyond[cause], why, because)


def _why(
    about: LateRank, cause: str, longer_ns: float, usual_ns: float, alike: bool
) -> tuple[Why, str]:
    """Why its own work takes ``longer_ns`` more per step than the others' ``usual_ns``, and a
    sentence on it. ``alike``: all parts of its computing are slower to the same degree.

    What was counted comes first: who computes longer also waits longer for a core."""
    counted, sentence = _counted(about, cause, longer_ns, usual_ns)
    cores = _cores(about, longer_ns)
    if counted or cores:
        return counted or "cores", " ".join(filter(None, (sentence, cores)))
    compared = [x for x in (about.samples, about.batch_bytes) if x and x.others]
    work = [x for x in (about.calls, about.flops) if x]
    if cause in COMPUTE and about.calls and compared and alike and all(map(_same, compared + work)):
        return "speed", (
            f"It does the same work as they do ({_work(about, 'own')} per step, and as much data)"
            f" at {percent(usual_ns / (usual_ns + longer_ns))} of their speed."
        )
    # In the forward or backward a line of its own is more work, of which nothing is known.
    line = about.line_ns if cause not in COMPUTE else None
    if line and about.line and _alone(line, longer_ns):
        return "alone", (
            f"Only this rank runs the line{where(about.line)}: {duration(line.own)} per step."
        )
    return "", ""


def _counted(about: LateRank, cause: str, longer_ns: float, usual_ns: float) -> tuple[Why, str]:
    """More data or more work, if it explains most of the time."""
    data = [x for x in (about.samples, about.batch_bytes) if x and x.others]
    if _explains(data, longer_ns, usual_ns):
        return "data", _more_data(about)
    work = [x for x in (about.calls, about.flops) if x]
    if cause in COMPUTE and about.calls and _explains(work, longer_ns, usual_ns):
        own, others = _work(about, "own"), _work(about, "others")
        return "work", f"It has more work: {own} per step, the others {others}."
    return "", ""


def _cores(about: LateRank, longer_ns: float) -> str:
    """A sentence, if its main thread's wait for a core explains most of the time."""
    queued = about.queued_ns
    if queued is None or not queued.own - queued.others >= MAJORITY_FRAC * longer_ns > 0:
        return ""
    return (
        f"Its main thread waits {duration(queued.own)} per step for a free core, theirs"
        f" {duration(queued.others)}."
    )


def _alone(line: Beside, longer_ns: float) -> bool:
    """Whether the others hardly run this line, and it explains most of the time."""
    hardly = line.others <= max(NOTICEABLE_FRAC * line.own, CERTAIN_ERRORS * line.error)
    return hardly and line.own >= MAJORITY_FRAC * longer_ns > 0


def _explains(more: Sequence[Beside], longer_ns: float, usual_ns: float) -> bool:
    """Whether this additional amount explains most of the time, if time grows in proportion."""
    largest = max((x.own / x.others for x in more if x.others and _more(x)), default=1.0)
    return longer_ns > 0 and (largest - 1) * usual_ns >= MAJORITY_FRAC * longer_ns


def _slower_alike(late: RankTime, others: tuple[RankTime, ...]) -> bool:
    """Whether all noticeable parts of the late rank's computing are slower, each by at least half
    as much as computing as a whole: a slow machine slows all of them, a slow line only one."""
    own = {name: ns for name, ns in late.components_ns.items() if name in COMPUTE}
    usual = {name: _median(others, name) for name in own}
    slower = sum(own.values()) / (sum(usual.values()) or math.inf) - 1
    parts = [n for n, ns in own.items() if ns >= NOTICEABLE_FRAC * sum(own.values())]
    return slower > 0 and all(own[n] - usual[n] >= MAJORITY_FRAC * slower * usual[n] for n in parts)


def _more_data(about: LateRank) -> str:
    if about.samples and _more(about.samples):
        numbers = f"{count(about.samples.own)} samples, the others' {count(about.samples.others)}"
        return f"Its batches have more data: {numbers}."
    assert about.batch_bytes is not None
    numbers = f"{size(about.batch_bytes.own)}, the others' {size(about.batch_bytes.others)}"
    alike = " for as many samples" if about.samples and _same(about.samples) else ""
    return f"Its batches have more data: {numbers}{alike} (longer samples, or more padding)."


def _work(about: LateRank, side: Literal["own", "others"]) -> str:
    assert about.calls is not None
    flops = about.flops and getattr(about.flops, side)
    return " and ".join(
        [
            f"{count(getattr(about.calls, side))} torch calls",
            *([f"{significant(flops / 1e9)} GFLOP"] if flops else []),
        ]
    )


def _more(x: Beside) -> bool:
    return x.own - x.others > max(NOTICEABLE_FRAC * x.others, CERTAIN_ERRORS * x.error)


def _same(x: Beside) -> bool:
    return abs(x.own - x.others) <= NOTICEABLE_FRAC * x.others


def changing_waits(ranks: Ranks, step_ns: float) -> str:
    """A sentence on how long the ranks wait for a different rank from step to step; empty if that
    is unknown, or not noticeable in the device's step."""
    waits = ranks.changing_ns
    if waits is None or waits < NOTICEABLE_FRAC * step_ns:
        return ""
    return (
        f"The ranks wait for each other at least {duration(waits)} per step"
        f" ({percent(waits / step_ns)}), and which rank is late changes from step to step."
    )


def _own(rank: RankTime) -> float:
    return sum(took for name, took in rank.components_ns.items() if name not in NOT_ITS_OWN)


def _usual(others: Sequence[RankTime]) -> float:
    return statistics.median(_own(rank) for rank in others if rank.components_ns)


def _median(ranks: tuple[RankTime, ...], component: str) -> float:
    measured = [rank.components_ns for rank in ranks if rank.components_ns]
    return statistics.median(parts.get(component, 0.0) for parts in measured)
