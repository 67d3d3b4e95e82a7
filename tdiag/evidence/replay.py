"""The traced steps as a program of host calls and device queues, to be replayed with changes.

Daydream (Zhu et al., USENIX ATC 2020) predicts the gain of a training optimisation in the same
way: a graph of host and device tasks, some of which are removed or shortened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from tdiag.model.kind import Kind

Ints = npt.NDArray[np.int64]

NONE = -1
DATA_WAIT = "host data_wait"
AFTER_D2H = "host after d2h"
# The host's own work, which a profiler slows down.
HOST_TAGS = (
    "call",
    AFTER_D2H,
    *(
        f"host {state}"
        for state in ("launch", "optimizer", "prepare", "python_loss", "evaluation", "other")
    ),
)


class Replay(Kind, frozen=True, kw_only=True):
    """``steps`` whole traced steps, which took ``total_ns`` until host and device were done with
    them. An unchanged replay takes exactly as long.

    ``tags`` name what can be changed. Of work: a family of :class:`KernelFamily`, followed by ``
    float32`` for matrix kernels that do not use matrix units; ``h2d pageable`` and the like
    (direction and memory as in :class:`Copy`), which also tags the copy's call. Of calls:
    ``alloc``; ``wait`` with the name of a call that waited (``wait h2d pageable`` for such a copy);
    ``call`` for the others. Of host time, including the calls that issue the optimizer's or the
    loss's work: ``host`` with a state of the host, as in :class:`DeviceTime`; ``host after d2h``
    from a copy to the host until the next call: the host uses what it got, or frees it.

    Columns of calls into the device's runtime, in order, times in ns from the start of the first
    step:

    ========= =====================================================================
    host      (calls + 1, tags): what the host did since all calls before had
              returned; the last row, what it did after the last call
    tag       number of the tag
    began     when the call began
    beside    if it began while an earlier one ran (another thread): ns after the
              call before it began; else −1
    own       in the call itself, without waiting
    issues    how much work it issues: the next in order
    awaited   how many entries of ``waits`` are its own: the next in order
    ========= =====================================================================

    ``waits``: indices of work whose end a call waits for. Columns of kernels and copies, in order
    of issue; the first ``queued`` of them were issued before the first step:

    ========= =====================================================================
    work_tag  number of the tag
    length    how long it runs
    after     the work before it in its stream, whose end and ``gap`` it lets pass
    joins     work of another stream whose end it awaits; −1 = none, as in ``after``
    lag       how long after those two, its call's begin and ``latency``, it began
    ========= =====================================================================
    """

    steps: int
    total_ns: int
    tags: tuple[str, ...]
    host: Ints
    tag: Ints
    began: Ints
    beside: Ints
    own: Ints
    issues: Ints
    awaited: Ints
    waits: Ints
    queued: int
    work_tag: Ints
    length: Ints
    after: Ints
    joins: Ints
    lag: Ints
    latency: int  # from a call's start to its work's start, if nothing else delays it
    gap: int  # between two kernels of a stream, if nothing else delays it

    def win_frac(self, scale: Mapping[str, float], *, pace: float = 1.0, fed: bool = True) -> float:
        """The share of the steps' time that a change saves, 0..1: see :meth:`end_ns`."""
        before = self.end_ns({}, pace=pace)
        return max(0.0, 1 - self.end_ns(scale, pace=pace, fed=fed) / before) if before else 0.0

    def spent_ns(self, tags: Collection[str]) -> float:
        """What calls with these tags take themselves, or what they issue, whichever is more."""
        chosen = np.flatnonzero([tag in tags for tag in self.tags])
        calls = self.own[np.isin(self.tag, chosen)].sum()
        return float(max(calls, self.length[np.isin(self.work_tag, chosen)].sum()))

    def end_ns(self, scale: Mapping[str, float], *, pace: float = 1.0, fed: bool = True) -> float:
        """When host and device are done with the changed steps: every time × its tag's factor. For
        waits, the factor is the share that still waits; the others wait for nothing, and the calls
        of copies to the host go, too.

        ``pace``: a factor on all of the host's own work, because a profiler slows the host but not
        the device. ``fed`` false: batches come no sooner than they did, as from workers that cannot
        keep up.
        """
        factors = np.array([
            scale.get(tag, 1.0) * (pace if tag in HOST_TAGS else 1.0) for tag in self.tags
        ])  # fmt: skip
        ends = self._queued(factors)
        took = (self.lag + self.length * factors[self.work_tag]).tolist()
        after, joins, waits = self.after.tolist(), self.joins.tolist(), self.waits.tolist()
        host, kept = (self.host @ factors).tolist(), factors[self.tag]
        goes = (self.awaited == 0) | np.array([tag.startswith("wait d2h") for tag in self.tags])[
            self.tag
        ]
        own = (self.own * np.where(goes, kept, 1.0)).tolist()
        held = self._held() if not fed else [0] * len(own)
        skipped = [0.0] * len(self.tags)
        began = clock = 0.0
        at_wait = 0
        calls = zip(
            host[:-1], own, self.beside.tolist(), self.issues.tolist(), self.awaited.tolist(),
            self.tag.tolist(), kept.tolist(), held, strict=True,
        )  # fmt: skip
        for before, inside, beside, issues, awaited, tag, share, not_before in calls:
            began = max(clock + before if beside < 0 else began + beside, not_before)
            for number in range(len(ends), len(ends) + issues):
                start = began + self.latency
                if (other := after[number]) >= 0:
                    start = max(start, ends[other] + self.gap)
                if (other := joins[number]) >= 0:
                    start = max(start, ends[other])
                ends.append(start + took[number])
            done = began
            if awaited:
                skipped[tag] += 1 - share
                if skipped[tag] < 1:
                    done = max(done, *(ends[n] for n in waits[at_wait : at_wait + awaited]))
                skipped[tag] %= 1
                at_wait += awaited
            clock = max(clock, done + inside)
        return float(max([clock + host[-1], *ends]))

    def _queued(self, factors: npt.NDArray[np.float64]) -> list[float]:
        """End times of the work issued before the first step."""
        ends: list[float] = []
        for number in range(self.queued):
            after, joins = int(self.after[number]), int(self.joins[number])
            start = ends[after] + self.gap if after >= 0 else 0.0
            start = max(start, ends[joins] if joins >= 0 else 0.0) + int(self.lag[number])
            ends.append(start + int(self.length[number]) * factors[self.work_tag[number]])
        return ends

    def _held(self) -> list[int]:
        """Until when each call was held back by the next batch; 0 = it was not."""
        if DATA_WAIT not in self.tags:
            return [0] * len(self.began)
        waited = self.host[:-1, self.tags.index(DATA_WAIT)] > 0
        held: list[int] = np.where(waited, self.began, 0).tolist()
        return held
