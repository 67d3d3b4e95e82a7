"""Features of frozen layers are worth keeping only where each epoch computes the same ones."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.machine import Startup
from tdiag.evidence.steps import StepHistory
from tdiag.evidence.training import FrozenLayers
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, budget, loaders, system

RULE = find("TD718")


def judged(*kinds: Any, **changes: Any) -> Finding | Abstained | None:
    """The rule's own example with these changes to its frozen layers."""
    evidence = RULE.fires()
    mine = evidence.get(FrozenLayers)
    assert mine is not None
    return run_rule(RULE, evidence.add(replace(mine, **changes), *kinds))


def finding(*kinds: Any, **changes: Any) -> Finding:
    found = judged(*kinds, **changes)
    assert isinstance(found, Finding)
    return found


def test_the_gain_is_the_time_of_the_frozen_calls() -> None:
    """They take 54 of 60 ms of the forward pass, of a step of 72 ms."""
    found = finding()
    assert found.at_best_ns == pytest.approx(54 * MS)
    assert found.location is not None and found.location.line == 20
    assert found.speedup is not None
    assert found.speedup.low == pytest.approx(1 / (1 - 54 * 0.9 / 72), rel=0.01)


@pytest.mark.parametrize("changes", [{"random": True}, {"changing": True}])
def test_silent_where_features_differ_from_epoch_to_epoch(changes: dict[str, bool]) -> None:
    assert judged(**changes) is None


def test_silent_without_epochs() -> None:
    assert judged(loaders(random=False, samples=64.0, dataset_len=None)) is None
    history = StepHistory(end_ns=(), durations_ns=(), windows=(), clean=(), epochs_ns=(0,))
    assert judged(history, Startup(parts_ns={}, run_ns=90_000 * MS)) is None


def test_abstains_where_random_numbers_of_fetches_were_not_recorded() -> None:
    assert isinstance(judged(loaders(random=None, samples=64.0)), Abstained)


def test_promises_nothing_where_training_mode_or_memory_may_forbid_it() -> None:
    active = finding(modes=("dropout",))
    assert "active dropout" in active.fix.text
    large = finding(system(ram_available_bytes=50_000 * 1e6), feature_bytes=64 * 1e6)
    for found in (active, large):
        assert found.speedup is not None and found.speedup.low == 1.0


def test_on_a_device_the_hosts_clock_tells_no_gain() -> None:
    assert finding(budget(device=True, compute=60, launch=10)).speedup is None
