"""What workers that live on save, and what they cannot."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, loaders, phases


@pytest.mark.parametrize(
    ("fetch_ms", "at_best_ms", "at_least_ms"),
    [
        (8, 18.0, 8.0),  # one fetch for each pass of four steps is waited for
        (40, 10.0, 0.0),  # the starts alone; filling the queue takes as long
        (None, 10.0, 5.0),
    ],
)
def test_at_best_warm_workers_keep_up_where_their_fetches_let_them(
    fetch_ms: float | None, at_best_ms: float, at_least_ms: float
) -> None:
    """A step of 50 ms, 20 of them waiting, half of that for the workers to start."""
    each = None if fetch_ms is None else fetch_ms * MS
    restarted = loaders(
        num_workers=2, worker_start_ns=(400 * MS,) * 5, load_ns=each, collate_ns=0.0
    )
    clean = phases({"data_wait": 1.5}, data_wait=20, forward=30)
    clean = replace(clean, iterator_start_ns=10 * MS, batches={1: 1.0})
    step = budget(data_wait=20, forward=30)
    found = run_rule(find("TD203"), Evidence().add(step, clean, restarted))
    assert isinstance(found, Finding)
    assert found.at_best_ns == pytest.approx(at_best_ms * MS)
    assert found.recoverable_ns == pytest.approx((at_least_ms + at_best_ms) * MS / 2)


@pytest.mark.parametrize(
    ("made", "persistent", "said"),
    [
        (1, False, "persistent_workers=True) at train.py:41."),
        (1, True, ""),
        (5, False, "Make the DataLoader at train.py:41 once"),
        (5, True, "Make the DataLoader at train.py:41 once"),
    ],
)
def test_workers_do_not_outlive_a_loader_that_each_epoch_makes_again(
    made: int, persistent: bool, said: str
) -> None:
    restarted = loaders(num_workers=2, worker_start_ns=(400 * MS,) * 5, made=made,
                        persistent_workers=persistent)  # fmt: skip
    clean = replace(phases(data_wait=30, forward=30), iterator_start_ns=10 * MS)
    found = run_rule(
        find("TD203"), Evidence().add(budget(data_wait=30, forward=30), clean, restarted)
    )
    assert (isinstance(found, Finding) and said in found.fix.text) if said else found is None
    if isinstance(found, Finding):
        assert (found.fix.intervention is None) is (made > 1), "no trial moves a line"


def test_slow_fetches_are_waited_for_as_now() -> None:
    """80 ms a fetch from two workers, 30 ms of work a step: 10 ms a step are waited for."""
    restarted = loaders(num_workers=2, worker_start_ns=(400 * MS,) * 5, load_ns=80 * MS,
                        collate_ns=0.0)  # fmt: skip
    clean = replace(phases(data_wait=30, forward=30), iterator_start_ns=10 * MS)
    step = budget(data_wait=30, forward=30)
    found = run_rule(find("TD203"), Evidence().add(step, clean, restarted))
    assert isinstance(found, Finding)
    assert found.at_best_ns == pytest.approx(20 * MS)


@pytest.mark.parametrize(("epochs", "at_best_ms"), [(1.0, 60.0), (0.1, 10.0)])
def test_steps_right_after_a_start_are_slower_altogether(epochs: float, at_best_ms: float) -> None:
    """Workers for each step: no part of it was measured without a start before it."""
    restarted = loaders(num_workers=2, worker_start_ns=(400 * MS,) * 5, load_ns=None)
    clean = phases({"data_wait": 1.0 + 2 * epochs}, data_wait=20, forward=40)
    clean = replace(clean, iterator_start_ns=10 * MS, batches={1: 1.0})
    step = budget(data_wait=20, forward=40)
    found = run_rule(find("TD203"), Evidence().add(step, clean, restarted))
    assert isinstance(found, Finding)
    assert found.at_best_ns == pytest.approx(at_best_ms * MS, rel=0.02)


@pytest.mark.parametrize(("kept", "more_ms"), [(False, (7.5, 12.5)), (True, (0.0, 0.0))])
def test_evaluations_restart_workers_as_well(kept: bool, more_ms: tuple[float, float]) -> None:
    """Once in four steps: 40 ms for their workers, 10 for one fetch, 30 for one forward pass, of
    80 in all."""
    (train,) = loaders(
        num_workers=2, worker_start_ns=(400 * MS,) * 5, load_ns=8 * MS, collate_ns=0.0
    ).loaders
    evaluating = replace(
        train, id=2, role="eval", worker_start_ns=(40 * MS,) * 5, load_ns=10 * MS,
        persistent_workers=kept, created_at=at(52),
    )  # fmt: skip
    clean = phases({"data_wait": 1.5}, data_wait=20, forward=30, evaluation=20)
    clean = replace(clean, iterator_start_ns=10 * MS, batches={1: 1.0}, eval_batches_per_step=0.25)
    step = budget(data_wait=20, forward=30, evaluation=20)
    found = run_rule(
        find("TD203"), Evidence().add(step, clean, Loaders(loaders=(train, evaluating)))
    )
    assert isinstance(found, Finding)
    low, high = 8.0 + more_ms[0], 18.0 + more_ms[1]
    assert found.at_best_ns == pytest.approx(high * MS)
    assert found.recoverable_ns == pytest.approx((low + high) * MS / 2)
    assert ("evaluation" in found.components) is not kept
    assert ("The same for evaluations at train.py:52." in found.fix.text) is not kept
