"""What the input rules take a step's fetches to be."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.rules.examples import MS, budget, loaders, phases, system
from tdiag.rules.feed import feed_of


@pytest.mark.parametrize(
    ("wait", "collected", "workers", "fetch"),
    [
        (40, 0, 0, 40),  # the fetches of profiled steps took longer: 60 ms on average
        (20, 15, 0, 20),  # they hold the collections in them, which the wait does not
        (70, 0, 0, 60),  # the sampler takes the rest of the wait
        (20, 0, 0, 60),  # fetched by another thread, which the step waits for only in part
        (20, 15, 2, 60),  # by workers
    ],
)
def test_fetches_in_the_training_process_are_part_of_the_wait(
    wait: float, collected: float, workers: int, fetch: float
) -> None:
    clean = replace(phases(data_wait=wait), gc_in_wait_ns=collected * MS)
    step = budget(data_wait_cpu=wait, forward=30)
    fed = feed_of(step, loaders(num_workers=workers), clean, system())
    assert fed is not None
    assert fed.wall == pytest.approx(fetch * MS)
    assert fed.cpu + fed.queued + fed.blocked == pytest.approx(fed.wall)
    assert fed.cpu == pytest.approx(59 / 60 * fetch * MS), "59 of 60 ms were on a core"
