"""Lines that wait for another thread, or for something outside of the process."""

from __future__ import annotations

from typing import Any

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.sampled import StackLine
from tdiag.evidence.steps import Budget, Phases
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import MODEL_PHASES

# Files of the standard library in which a thread waits, as leaves name them: for another thread;
# for a pipe, a socket or a program.
_FOR_THREADS = ("/threading.py)", "queue.py)", "/_base.py)")
_FOR_PROCESSES = (
    "multiprocessing/connection.py)", "/socket.py)", "/ssl.py)", "/selectors.py)", "/subprocess.py)"
)  # fmt: skip


def for_thread(line: StackLine) -> bool:
    """Whether the line's samples end in waiting for another thread of the process."""
    return line.leaf.endswith(_FOR_THREADS)


def for_process(line: StackLine) -> bool:
    """Whether the line's samples end in waiting for another process or a service."""
    return line.leaf.endswith(_FOR_PROCESSES)


def cores_beside(
    waiting: float,
    budget: Budget,
    phases: Phases | None,
    system: System | None,
    threads: Threads | None,
    loaders: Loaders | None,
) -> float | None:
    """Cores that other processes of the program use, on average, if the training thread waits for
    ``waiting``, a share of the step, 0..1: what the whole program uses beyond what its threads can,
    the training thread in the rest of the step, torch's while it computes, and Python's. None if
    that is unknown, or if a loader has workers, whose part of it is."""
    loader = loaders.train() if loaders else None
    if system is None or system.cores_used is None or threads is None or phases is None:
        return None
    if loader is not None and loader.num_workers:
        return None
    computing = sum(map(budget.share, MODEL_PHASES))
    beside = (phases.beside_ns or 0.0) / budget.step_ns
    mine = 1 - waiting + computing * (threads.intra_op - 1) + beside
    return max(0.0, system.cores_used - mine)


def processes_work(waiting: float, *evidence: Any) -> bool:
    """Whether other processes use a core during most of the wait (:func:`cores_beside`)."""
    return (cores_beside(waiting, *evidence) or 0.0) > MAJORITY_FRAC * waiting
