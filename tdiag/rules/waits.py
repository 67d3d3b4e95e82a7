"""Lines that wait for another thread, or for something outside of the process."""

from __future__ import annotations

import re
from typing import Any

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.sampled import StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import MODEL_PHASES
from tdiag.rules.syntax import statement_text

# Files of the standard library in which a thread waits, as leaves name them: for another thread;
# for a pipe, a socket or a program.
_FOR_THREADS = ("/threading.py)", "queue.py)", "/_base.py)")
_FOR_PROCESSES = (
    "multiprocessing/connection.py)", "/socket.py)", "/ssl.py)", "/selectors.py)", "/subprocess.py)"
)  # fmt: skip
_PUTS = re.compile(r"\.put\(")


def for_thread(line: StackLine) -> bool:
    """Whether the line's samples end in waiting for another thread of the process."""
    return line.leaf.endswith(_FOR_THREADS)


def for_process(line: StackLine) -> bool:
    """Whether the line's samples end in waiting for another process or a service."""
    return line.leaf.endswith(_FOR_PROCESSES)


def fills_a_queue(stacks: Stacks | None) -> bool:
    """Whether a thread beside the training waits until its queue has room: it makes batches."""
    lines = stacks.others if stacks else ()
    waiting = filter(for_thread, lines)
    return any(_PUTS.search(statement_text(*line.at.spot)) for line in waiting)


def cores_beside(
    waiting: float,
    budget: Budget,
    phases: Phases | None,
    system: System | None,
    threads: Threads | None,
) -> float | None:
    """Cores that other threads and processes of the program use at least, on average, if the
    training thread waits for ``waiting``, a share of the step, 0..1: what the program uses without
    the training thread in the rest of the step, and without torch's threads if they all help
    whenever it computes. None if that is unknown."""
    if system is None or system.cores_used is None or phases is None or threads is None:
        return None
    computing = sum(map(budget.share, MODEL_PHASES))
    return max(0.0, system.cores_used - (1 - waiting) - computing * (threads.intra_op - 1))


def cores_of_processes(
    waiting: float,
    budget: Budget,
    phases: Phases | None,
    system: System | None,
    threads: Threads | None,
    loaders: Loaders | None,
) -> float | None:
    """Of :func:`cores_beside` what other processes use at least. None as well if a loader has
    workers, which use part of it."""
    loader = loaders.train() if loaders else None
    beside = cores_beside(waiting, budget, phases, system, threads)
    if beside is None or phases is None or (loader and loader.num_workers):
        return None
    return max(0.0, beside - (phases.beside_ns or 0.0) / budget.step_ns)


def processes_work(waiting: float, *known: Any) -> bool:
    """Whether other processes use a core during most of ``waiting``; arguments as of
    :func:`cores_of_processes`."""
    return (cores_of_processes(waiting, *known) or 0.0) > MAJORITY_FRAC * waiting
