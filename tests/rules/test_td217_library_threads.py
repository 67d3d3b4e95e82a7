"""Pools of threads that libraries start in workers."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.budget import make_budget
from tdiag.diagnose.engine import run_rule
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, budget, loaders, phases, stack, stacks, system, threads

RULE = find("TD217")


def judged(*kinds: Any, **changes: Any) -> Finding | Abstained | None:
    """The rule's own example, four workers on four cores, with these changes to its loader."""
    evidence = RULE.fires()
    known = evidence.get(Loaders)
    assert known is not None
    mine = Loaders(loaders=tuple(replace(x, **changes) for x in known.loaders))
    return run_rule(RULE, evidence.add(mine, *kinds))


@pytest.mark.parametrize(
    "changes",
    [
        {"pool_cpu_ns": 10.0 * MS},  # 13 % of 75 ms
        {"pool_threads": 0},  # threads of Python's own
        {"num_workers": 0},
        {"num_workers": 1, "pool_threads": 3},  # as many threads as cores
    ],
)
def test_silent_where_threads_are_few_or_cost_little(changes: dict[str, Any]) -> None:
    assert isinstance(judged(), Finding)
    assert judged(**changes) is None


def test_many_cores_may_have_many_threads() -> None:
    cores = system(cores_allowed=64.0, cores_machine=64, cores_used=20.0)
    assert judged(cores) is None


def test_one_worker_that_takes_the_trainings_cores_counts_beside_its_threads() -> None:
    """A pool of two threads on two cores, which two threads of torch need, too."""
    worker = {"num_workers": 1, "pool_threads": 1, "pool_cpu_ns": 55.0 * MS}
    idle = system(cores_allowed=2.0, cores_machine=2, cores_used=1.9, training_queued_frac=0.0)
    assert judged(idle, threads(2, worker_intra_op=1), **worker) is None
    busy = replace(idle, training_queued_frac=0.3)
    found = judged(busy, threads(2, worker_intra_op=1), **worker)
    assert isinstance(found, Finding)
    assert "A worker runs 2 threads, training 2: 4 threads on 2 available cores." in found.summary
    waits = next(m for m in found.evidence if m.name.startswith("computing waits"))
    assert waits.value == pytest.approx(0.3 * 15 * MS)  # of forward and backward


def test_torchs_own_threads_in_workers_are_another_rules() -> None:
    assert judged(threads(4, worker_intra_op=4)) is None
    assert isinstance(judged(threads(4, worker_intra_op=1)), Finding)


def test_the_ranks_of_a_machine_share_its_cores() -> None:
    eight = system(cores_allowed=16.0, cores_machine=16, cores_used=15.0)
    assert judged(eight) is None  # 16 threads on 16 cores
    assert isinstance(judged(eight, threads(1, processes=2, together=2)), Finding)


def test_a_run_recorded_before_this_was_measured_abstains() -> None:
    old = judged(pool_cpu_ns=None, pool_threads=None)
    assert isinstance(old, Abstained)
    assert "workers' other threads" in old.missing


def test_opencv_is_told_in_its_own_words() -> None:
    line = replace(stack(17, 0.9, "resize (cv2.py)", function="__getitem__"), library="cv2")
    found = judged(stacks(workers=(line,)))
    assert isinstance(found, Finding) and "cv2.setNumThreads(0)" in found.fix.code
    plain = judged()
    assert isinstance(plain, Finding) and "threadpool_limits(1)" in plain.fix.code


@pytest.mark.parametrize(("pool_ms", "cls"), [(0.0, "data_wait_io"), (200.0, "data_wait_cpu")])
def test_a_fetch_that_waits_for_its_own_threads_is_not_blocked_on_storage(
    pool_ms: float, cls: str
) -> None:
    """It is off its core for 50 of 60 ms, while a pool of Python's threads decodes or idles."""
    pooled = loaders(
        num_workers=2, load_ns=60.0 * MS, load_cpu_ns=10.0 * MS, collate_ns=0.0, collate_cpu_ns=0.0,
        runqueue_ns=0.0, read_bytes=4e6, pool_cpu_ns=pool_ms * MS, pool_threads=0,
    )  # fmt: skip
    each = 100 * MS
    steps = Steps(
        durations_ns=(each,) * 30, mean_ns=each, median_ns=each, p90_ns=each, count=30,
        boundary="optimizer", total_steps_seen=99,
    )  # fmt: skip
    evidence = Evidence().add(steps, phases(data_wait=60, forward=40), pooled, system())
    step = make_budget(evidence)
    assert step is not None and max(step.components_ns, key=step.components_ns.__getitem__) == cls
    blocked = run_rule(find("TD101"), evidence.add(step))
    assert isinstance(blocked, Finding) is (cls == "data_wait_io")


def test_nothing_to_win_where_no_batch_is_waited_for() -> None:
    assert judged(budget(forward=60, backward=90)) is None
