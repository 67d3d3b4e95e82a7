"""Which rank of a distributed job failed first, and which rank a hanging job waits for.

A rank that dies takes the others with it: their collectives fail, or the launcher kills them. All
of them print a traceback, and the launcher's exit code does not show which was first.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from tdiag.launch.progress import Progress, Reported
from tdiag.launch.watchdog import NO_STEP_S
from tdiag.probe.wire import is_user_file
from tdiag.sample.pyspy import Frame, dump

MOST_ASKED = 8  # ranks whose stack is read; each takes a fraction of a second
COMMUNICATES = ("torch/distributed/", "torch/nn/parallel/distributed")
ENGINE = "torch/autograd/"  # backward, in which DistributedDataParallel waits in C++


class RankWatch:
    """``tick``, called about twenty times a second, notes when each rank's process ends. ``look``,
    called occasionally, notes whether the job still makes steps."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.poll = select.poll()
        self.pid_of: dict[int, int] = {}  # pidfd → pid of the living processes
        self.gone: dict[int, int] = {}  # pid → when it ended, perf_counter ns
        self.steps = 0
        self.stepped_s = 0.0
        self.stands = ""  # where each rank was when the job made no steps

    def tick(self) -> None:
        """Note which ranks have ended since the last call."""
        watched = {*self.pid_of.values(), *self.gone}
        for rank in self.progress.ranks():
            if rank.file.pid not in watched:
                self._watch(rank.file.pid)
        ended = self.poll.poll(0)
        now = time.perf_counter_ns()  # one time for all: in which order they ended is not known
        for descriptor, _ in ended:
            self.poll.unregister(descriptor)
            os.close(descriptor)
            self.gone[self.pid_of.pop(descriptor)] = now

    def look(self, now_s: float) -> str:
        """A sentence, once, when a job that made steps has made none for ``NO_STEP_S``. Long
        evaluations and checkpoints make no steps either, so the job is ended only if all of its
        processes are also idle."""
        steps, ranks = self.progress.steps(), self.progress.ranks()
        if steps != self.steps or not steps or any(r.finish for r in ranks) or self.stands:
            self.steps, self.stepped_s = steps, now_s
            return ""
        if now_s - self.stepped_s < NO_STEP_S or not ranks:
            return ""
        self.stands = standing(ranks)
        return self.stands

    def hangs(self) -> bool:
        """Whether the job makes no steps and all its ranks are on this machine: a rank elsewhere
        may work while those here wait for it."""
        return bool(self.stands) and not _absent(self.progress.ranks())

    def close(self) -> None:
        for descriptor in self.pid_of:
            os.close(descriptor)
        self.pid_of.clear()

    def started_again(self) -> list[str]:
        """For each attempt that failed and was followed by another one: which rank failed first."""
        failed = [
            job for job in self.progress.jobs()[:-1] if any(r.died or not r.finish for r in job)
        ]
        return [
            f"the ranks failed and were restarted{first and ': ' + first}"
            for first in map(self._first, failed)
        ]

    def first_failure(self) -> str:
        """A sentence on which rank of the failed job was first; "" if that is unknown."""
        return self._first(self.progress.ranks())

    def _first(self, ranks: list[Reported]) -> str:
        found = [(when, rank) for rank in ranks if (when := self._when(rank, ranks)) is not None]
        if not found:
            return ""
        earliest = min(when for when, _ in found)
        first, *beside = [rank for when, rank in found if when == earliest]
        if beside:
            return ""  # noticed in one look: any of them may have been the first
        absent = _absent(ranks)
        if absent and first.died is None:
            return ""  # a rank on another machine may have failed and the launcher ended this one
        steps = first.died["step"] if first.died else first.steps
        # The first step only starts the clock and is not recorded.
        after = f"after {_steps(steps + 1)}" if steps else "before its second step"
        who = f"rank {first.rank}"
        if first.died is not None:
            at = first.died.get("at")
            place = f" at {Path(at[0]).name}:{at[1]}" if at else ""
            among = " of the ranks on this machine" if absent else ""
            return f"{who} failed first{among}, {after}: {first.died['what']}{place}"
        if first.finish == "exit":
            return (
                f"{who} ended first, {after}, without an exception: it called exit, or ran out of"
                " data before the others"
            )
        return f"{who} ended first, {after} or more, without a Python error message: it was killed"

    def _watch(self, pid: int) -> None:
        with contextlib.suppress(OSError, AttributeError):  # gone already; a kernel before 5.3
            descriptor = os.pidfd_open(pid)
            self.pid_of[descriptor] = pid
            self.poll.register(descriptor, select.POLLIN)

    def _when(self, rank: Reported, ranks: list[Reported]) -> int | None:
        """When it failed by itself. None if it lost the others, still lives, or ended after another
        of ``ranks`` or together with one that waited in vain: the launcher may have killed it."""
        if rank.died is not None:
            return None if rank.died.get("peers") else int(rank.died["t"])
        gone = self.gone.get(rank.file.pid)
        ends = {r.rank: self.gone[r.file.pid] for r in ranks if r.file.pid in self.gone}
        if gone is None or gone > min(ends.values()):
            return None
        together = (r.died for r in ranks if ends.get(r.rank) == gone and r.died)
        return None if any(died.get("peers") == "timed out" for died in together) else gone


def standing(ranks: list[Reported], dump: Callable[[int], list[Frame]] = dump) -> str:
    """Where each rank is: after which step, in which function, at which user line."""
    places = [
        (rank, dump(rank.file.pid)) for rank in sorted(ranks, key=lambda r: r.rank)[:MOST_ASKED]
    ]
    known = [(rank, stack) for rank, stack in places if stack]
    late = [rank.rank for rank, stack in known if not _waits(stack)]
    said = [f"rank {rank.rank} {_place(rank, stack)}" for rank, stack in places]
    who = ""
    if len(late) == 1 and len(known) == len(ranks) and not _absent(ranks):
        who = f"the others wait for rank {late[0]}; "
    here = " on this machine" if _absent(ranks) else ""
    return f"no rank{here} has ended a step for {NO_STEP_S:.0f} s: {who}{'; '.join(said)}"


def _absent(ranks: list[Reported]) -> bool:
    """Whether ranks of the job are on other machines or have not joined it."""
    return len({rank.rank for rank in ranks}) < max((rank.world_size for rank in ranks), default=0)


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count > 1)}"


def _waits(stack: list[Frame]) -> bool:
    """Whether it waits for other ranks: below the user's innermost line is communication or
    backward."""
    inner: list[Frame] = []
    for frame in stack:
        if is_user_file(frame.file):
            break
        inner.append(frame)
    return any(part in f.file for f in inner for part in (*COMMUNICATES, ENGINE))


def _place(rank: Reported, stack: list[Frame]) -> str:
    """Says "or more", because it may have ended a few steps that it has not recorded yet."""
    text = f"after {_steps(rank.steps + 1)} or more"
    if not stack:
        return f"{text} (its stack could not be read)"
    caller = next((frame for frame in stack if is_user_file(frame.file)), None)
    text += f" in {stack[0].name} ({stack[0].place()})"
    return text if caller in (None, stack[0]) else f"{text}, called at {caller.place()}"
