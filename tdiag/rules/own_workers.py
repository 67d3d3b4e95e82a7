"""Cores that a program's own workers and threads take from its training on a CPU."""

from __future__ import annotations

from tdiag.evidence.feeding import Loader
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.steps import Budget, Phases
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import MODEL_PHASES, held
from tdiag.rules.feed import Feed, left_by_others


def taken_by_workers(
    system: System | None, loader: Loader | None, threads: Threads | None
) -> float:
    """Share of the time, 0..1, in which the training thread was ready and a worker of its own
    loader had the core: it waited in the kernel's run queue, less what other programs took. 0 if
    torch's own threads are more than the cores, because it may have waited for them."""
    if loader is None or not loader.num_workers:
        return 0.0
    return _taken(system, threads)


def taken_by_threads(
    budget: Budget,
    phases: Phases,
    system: System | None,
    loader: Loader | None,
    threads: Threads | None,
) -> float:
    """The same for the program's other Python threads, in ns per step: at most their time on a
    core. 0 beside workers, which may have had the core."""
    if loader is not None and loader.num_workers:
        return 0.0
    return min(_taken(system, threads) * budget.step_ns, phases.beside_ns or 0.0)


def _taken(system: System | None, threads: Threads | None) -> float:
    if system is None or threads is None:
        return 0.0
    if threads.processes > 1 or threads.intra_op > system.cores_allowed:
        return 0.0
    return max(0.0, (system.training_queued_frac or 0.0) - (1.0 - left_by_others(system)))


def computing_lost(
    budget: Budget,
    system: System,
    fed: Feed,
    threads: Threads | None,
    roof: Roof | None,
    work: Work | None,
) -> tuple[float, float]:
    """The computing time that fetching costs, ns per step, at least and at most: the training
    thread's own wait for a core; and, if every parallel call waits for torch's other threads as
    well, all the time in which a worker fetches while the training computes, but nothing of the
    work at the machine's best rates."""
    taken = taken_by_workers(system, fed.loader, threads)
    if not taken or budget.has_device or threads is None:
        return 0.0, 0.0
    computing = held(budget, *MODEL_PHASES)
    least = most = taken * computing
    if threads.intra_op > 1:
        most = min(fed.wall - fed.wait, computing)
    return least, max(least, min(most, beyond_best(computing, roof, work)))


def beyond_best(computing: float, roof: Roof | None, work: Work | None) -> float:
    """What computing takes beyond its work at the machine's best rates, ns per step; all of it if
    these are not known well."""
    if roof is None or work is None or roof.certainty < MAJORITY_FRAC:
        return computing
    return computing - sum(map(roof.best_ns, work.ops))
