"""The traced steps as a program of host calls and device queues, which can be run again changed.

Daydream (Zhu et al., USENIX ATC 2020) predicts what an optimisation of a training would win in the
same way: a graph of host and device tasks, some of which are removed or shortened.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tdiag.evidence.base import Kind

NONE = -1
DATA_WAIT = "host data_wait"


class Call(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call into the device's runtime, and what the host did before it.

    ``host``: ``(tag, ns)`` of what the host did since all calls before had returned. ``beside_ns``:
    if it began while one of those ran (another thread), ns after the call before began, else −1.
    ``own_ns``: in the call itself, without waiting. ``waits``: numbers of the work whose end it
    awaits. ``issues``: how much work it issues: the next in order. ``began_ns``: in the trace, from
    the first step's begin.
    """

    tag: str
    host: tuple[tuple[str, int], ...] = ()
    beside_ns: int = NONE
    own_ns: int = 0
    waits: tuple[int, ...] = ()
    issues: int = 0
    began_ns: int = 0


class Work(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A kernel or copy, in order of issue. It begins ``lag_ns`` after the last of: its call's begin
    and the usual latency; the end of the work ``after`` (before it in its stream) and the usual
    gap; the end of the work ``joins`` (of another stream). Numbers of work, −1 = none."""

    tag: str
    dur_ns: int
    lag_ns: int
    after: int = NONE
    joins: int = NONE


class Replay(Kind, frozen=True, kw_only=True):
    """``steps`` whole traced steps. Replayed unchanged they take exactly as long as they did.

    Tags, by which times are scaled. Of work: a family of :class:`KernelFamily`, with `` float32``
    behind it for matrix kernels without matrix units; ``h2d pageable`` and the like (direction and
    memory as in :class:`Copy`), which is the tag of the copy's call, too. Of calls: ``call``,
    ``alloc``, and ``wait`` with the name of a call that may wait. Of host time: ``host`` with a
    state of the host, as in :class:`DeviceTime`.
    """

    steps: int
    calls: tuple[Call, ...]
    work: tuple[Work, ...]
    queued: int  # work that was issued before the first step
    latency_ns: int  # from a call's begin to its work's, where nothing else is in the way
    gap_ns: int  # between two kernels of a stream, where nothing else is in the way
    rest: tuple[tuple[str, int], ...] = ()  # host time after the last call

    def win_ns(self, scale: Mapping[str, float], *, fed: bool = True) -> float:
        """What a change takes off a traced step: every time × its tag's factor; of the waits of a
        tag, that share stays, the others wait for nothing.

        ``fed`` false: batches come no sooner than they did, as from workers that cannot keep up.
        """
        saved = self._end({}, True) - self._end(scale, fed)
        return max(0.0, saved) / self.steps

    def step_ns(self) -> float:
        return self._end({}, True) / self.steps

    def _end(self, scale: Mapping[str, float], fed: bool) -> float:
        """When host and device are done."""
        factor = scale.get
        ends: list[float] = []
        began = clock = 0.0
        self._issue(self.queued, 0.0, ends, scale)
        left_out: dict[str, float] = {}
        for call in self.calls:
            if call.beside_ns == NONE:
                began = clock + sum([ns * factor(tag, 1.0) for tag, ns in call.host])
            else:
                began += call.beside_ns
            if not fed and any(tag == DATA_WAIT for tag, _ in call.host):
                began = max(began, call.began_ns)
            if call.issues:
                self._issue(call.issues, began + self.latency_ns, ends, scale)
            done = began
            if call.waits:
                skip = left_out.get(call.tag, 0.0) + 1.0 - factor(call.tag, 1.0)
                left_out[call.tag] = skip % 1.0
                if skip < 1.0:
                    done = max(began, *[ends[number] for number in call.waits])
                done += call.own_ns
            else:
                done += call.own_ns * factor(call.tag, 1.0)
            clock = max(clock, done)
        clock += sum(ns * factor(tag, 1.0) for tag, ns in self.rest)
        return max(clock, *ends) if ends else clock

    def _issue(
        self, count: int, begin: float, ends: list[float], scale: Mapping[str, float]
    ) -> None:
        """Append the ends of the next so many pieces of work."""
        for work in self.work[len(ends) : len(ends) + count]:
            start = begin
            if work.after >= 0:
                start = max(start, ends[work.after] + self.gap_ns)
            if work.joins >= 0:
                start = max(start, ends[work.joins])
            ends.append(start + work.lag_ns + work.dur_ns * scale.get(work.tag, 1.0))
