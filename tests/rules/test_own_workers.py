"""Cores that a loader's own workers take from the training."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.cores_back import with_cores_back
from tdiag.diagnose.costs import WORKERS, weigh
from tdiag.diagnose.engine import run_rule
from tdiag.evidence.machine import System
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.rules.base import DATA_WAIT, Gain
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, budget, loaders, phases, system, threads
from tdiag.rules.own_workers import taken_by_workers

BUSY = system(cores_allowed=2.0, cores_machine=2, cores_used=1.95, machine_busy_cores=1.95,
              training_queued_frac=0.3)  # fmt: skip
ONE = loaders(num_workers=1, load_ns=30 * MS, load_cpu_ns=30 * MS, runqueue_ns=0.0)


@pytest.mark.parametrize(
    ("machine", "workers", "intra_op", "processes", "taken"),
    [
        (BUSY, 1, 2, 1, 0.3),
        (replace(BUSY, machine_busy_cores=2.0, cores_used=1.8), 1, 2, 1, 0.1),  # others took 0.2
        (BUSY, 0, 2, 1, 0.0),
        (BUSY, 1, 3, 1, 0.0),  # torch's own threads are more than the cores
        (BUSY, 1, 2, 2, 0.0),
        (replace(BUSY, training_queued_frac=None), 1, 2, 1, 0.0),
    ],
)
def test_the_training_thread_waits_for_a_core_that_a_worker_has(
    machine: System, workers: int, intra_op: int, processes: int, taken: float
) -> None:
    loader = loaders(num_workers=workers).train()
    found = taken_by_workers(machine, loader, threads(intra_op, processes=processes))
    assert found == pytest.approx(taken)


def training(machine: System = BUSY) -> Evidence:
    """15 ms of 100 wait for a batch, whose fetch takes 30 ms of a core."""
    step = budget(data_wait_cpu=15, forward=30, loss=1, backward=45, optimizer=9)
    clean = phases(data_wait=15, forward=30, loss=1, backward=45, optimizer=9)
    return Evidence().add(step, clean, machine, ONE, threads(2))


def test_it_is_preprocessings_time() -> None:
    evidence = training()
    costs = weigh(evidence, budget(data_wait_cpu=15, forward=30, loss=1, backward=45, optimizer=9),
                  ())  # fmt: skip
    assert costs.by_class["cpu"] == pytest.approx((15 + 0.3 * 85) * MS)
    assert costs.compute == pytest.approx(0.7 * 85 * MS)
    assert costs.crowded == (pytest.approx(0.255), WORKERS, "cpu")


def test_a_fetch_without_work_also_leaves_its_core() -> None:
    """At most all the time in which a worker fetches (35 ms) while the training computes."""
    found = run_rule(find("TD202"), training(replace(BUSY, training_queued_frac=0.15)))
    assert isinstance(found, Finding)
    assert found.at_best_ns == pytest.approx(35 * MS)
    idle = run_rule(find("TD202"), training(replace(BUSY, training_queued_frac=0.0)))
    assert isinstance(idle, Finding) and idle.at_best_ns == pytest.approx(15 * MS)


@pytest.mark.parametrize(
    ("low_ms", "high_ms", "least_ms", "most_ms"),
    [
        (2, 10, 2 + 0.02 * 12.75, 10 + 0.1 * 20),  # 2 and 10 % of the fetch
        (0, 15, 0, 35),  # as much as the wait: perhaps all of the fetch
        (-1, 10, -1, 12),
    ],
)
def test_a_cheaper_fetch_gives_its_part_of_the_cores_back(
    low_ms: float, high_ms: float, least_ms: float, most_ms: float
) -> None:
    """Computing waits 12.75 to 20 ms for a core that the worker has."""
    evidence = training(replace(BUSY, training_queued_frac=0.15))
    step = evidence.get(Budget)
    assert step is not None
    gain = Gain(low_ms * MS, high_ms * MS, "Less work.", DATA_WAIT, fetches=True)
    found = with_cores_back(gain, evidence, step)
    assert found.low_ns == pytest.approx(least_ms * MS)
    assert found.high_ns == pytest.approx(most_ms * MS)
    assert {"forward", "backward"} <= set(found.components)
    alone = replace(BUSY, training_queued_frac=0.0)
    assert with_cores_back(gain, training(alone), step) == gain
    other = Gain(low_ms * MS, high_ms * MS, "More workers.", DATA_WAIT)
    assert with_cores_back(other, evidence, step) == other


@pytest.mark.parametrize(("high_ms", "workers", "more_ms"), [(15, 0, 5), (30, 0, 10), (15, 1, 0)])
def test_a_cheaper_fetch_leaves_less_garbage(high_ms: float, workers: int, more_ms: float) -> None:
    """30 of 100 ms wait for a batch, and 10 more for collections in the fetch: at most in
    proportion, because other work may make the objects."""
    step = budget(data_wait_cpu=30, gc=10, forward=20, backward=40)
    clean = replace(phases(data_wait=30, forward=20, backward=40), gc_in_wait_ns=10 * MS)
    fed = loaders(num_workers=workers, load_ns=30 * MS, load_cpu_ns=30 * MS, runqueue_ns=0.0)
    evidence = Evidence().add(step, clean, system(), fed, threads(2))
    gain = Gain(1 * MS, high_ms * MS, "Less work.", DATA_WAIT, fetches=True)
    found = with_cores_back(gain, evidence, step)
    assert found.low_ns == 1 * MS
    assert found.high_ns == pytest.approx((high_ms + more_ms) * MS)
    assert ("gc" in found.components) is (more_ms > 0)
