"""Ends a program that would wait for ever: one that tdiag has stopped, or a hanging job.

The probe ends a training process with `SystemExit` at a step boundary. Its parent may then wait for
a result that never comes (Lightning's `ddp_spawn` waits on a queue), and a rank for one that has
ended. While any process of the program still works, it is left alone: it may save or upload.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

import psutil

from tdiag.launch.progress import Progress
from tdiag.model.threshold import Threshold
from tdiag.probe.wire import is_user_file
from tdiag.sample.pyspy import Frame, dump

STILL_S = Threshold(
    15.0,
    "s",
    "Heuristic: time for a disk or a server to answer; short compared with the minute that a"
    " diagnosis may take.",
)
WORKING_CORES = Threshold(
    0.02,
    "cores",
    "Heuristic: a process that only waits uses less; torchrun's agent polls its ranks ten times a"
    " second and took 0.25 % of a core (20 ms of 8 s).",
)
NO_STEP_S = Threshold(
    60.0,
    "s without a step",
    "Heuristic: a rank may wait for another in a collective in a busy loop (NCCL does), so its CPU"
    " time does not show it; few steps take a minute.",
)
END_WITHIN_S = 5.0  # from SIGTERM to SIGKILL; Docker and systemd give 10 and 90 s to healthy ones
MOST_ASKED = 8  # processes whose stack is read; each takes a fraction of a second


class Watchdog:
    """Call ``look`` every half second. ``ended``: what it ended, one sentence per process; empty as
    long as it ended nothing."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.ended: list[str] = []
        self.since_s = 0.0  # when the program last did something
        self.cpu_s = 0.0  # CPU time of all its processes until then
        self.pids: set[int] = set()
        self.steps = 0
        self.stepped_s = 0.0

    def look(
        self,
        now_s: float,
        processes: Callable[[], Iterable[psutil.Process]],
        *,
        hangs: bool = False,
    ) -> None:
        """``now_s``: monotonic seconds. ``processes``: those of the program, its root first; called
        only once tdiag has stopped the program, or the job ``hangs``."""
        if self.ended or not (hangs or self.progress.stopped()):
            return
        alive = [process for process in processes() if _alive(process)]
        if self._works(now_s, alive):
            return
        said = [_waits(process) for process in alive[:MOST_ASKED]]
        users = [where for where, in_users_code in said if in_users_code]
        self.ended = users or [where for where, _ in said[:1]]
        end(alive)

    def _works(self, now_s: float, alive: list[psutil.Process]) -> bool:
        """Whether the program still works, or may."""
        pids, cpu_s, steps = {p.pid for p in alive}, _cpu_s(alive), self.progress.steps()
        if pids != self.pids or steps != self.steps:
            self.pids, self.steps, self.stepped_s = pids, steps, now_s
            self.since_s, self.cpu_s = now_s, cpu_s
            return True
        if self.progress.unstopped() & pids and now_s - self.stepped_s >= NO_STEP_S:
            return False
        still_s = now_s - self.since_s
        if cpu_s - self.cpu_s > WORKING_CORES * max(still_s, STILL_S):
            self.since_s, self.cpu_s = now_s, cpu_s
            return True
        return not pids or still_s < STILL_S


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _cpu_s(processes: Iterable[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _waits(process: psutil.Process) -> tuple[str, bool]:
    """``process 71 waited in get (multiprocessing/queues.py:103), called at train.py:12``, and
    whether this is in the user's code."""
    text, stack = f"process {process.pid} waited", dump(process.pid)
    if not stack:
        return text, False
    leaf, caller = stack[0], next(filter(_is_users, stack), None)
    text += f" in {leaf.name} ({leaf.place()})"
    if caller is not None and caller != leaf:
        text += f", called at {caller.place()}"
    return text, caller is not None


def _is_users(frame: Frame) -> bool:
    return is_user_file(frame.file)


def end(processes: list[psutil.Process]) -> None:
    """SIGTERM, then SIGKILL. The root first: a parent that sees its children die would report that
    as their failure."""
    for some in (processes[:1], processes[1:]):
        for signal in (psutil.Process.terminate, psutil.Process.kill):
            for process in filter(_alive, some):
                with contextlib.suppress(psutil.Error):
                    signal(process)
            until = time.monotonic() + END_WITHIN_S
            while any(map(_alive, some)) and time.monotonic() < until:
                time.sleep(0.05)
