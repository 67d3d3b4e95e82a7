"""What is worth knowing but claims no step time, and batches that wait behind a slow one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.steps import Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import GB, MB, MS, loaders, optimizers, system

ADAM, MEMORY, IN_ORDER = find("TD002"), find("TD211"), find("TD105")


@pytest.mark.parametrize(
    ("name", "config", "fires"),
    [
        ("Adam", {"weight_decay": 1e-6}, True),
        ("Adam", {"weight_decay": 0}, False),
        ("Adam", {"weight_decay": None}, False),  # a tensor: its value was not recorded
        ("Adam", {"weight_decay": 0.01, "decoupled_weight_decay": True}, False),
        ("SGD", {"weight_decay": 0.01}, False),
    ],
)
def test_only_adams_own_decay_is_advised_against(
    name: str, config: dict[str, float | bool | None], fires: bool
) -> None:
    found = run_rule(ADAM, Evidence().add(optimizers(name, fused=None, **config)))
    assert isinstance(found, Finding) is fires


@pytest.mark.parametrize(("free_mb", "fires"), [(1599, True), (1601, False)])
def test_batches_in_flight_are_weighed_against_what_is_free(free_mb: int, fires: bool) -> None:
    """Two workers with two batches of 400 MB each."""
    four = loaders(num_workers=2, prefetch_factor=None, batch_bytes=400.0 * MB)
    found = run_rule(MEMORY, Evidence().add(four, system(ram_available_bytes=free_mb * MB)))
    assert isinstance(found, Finding) is fires


def test_what_fits_is_written_out() -> None:
    many = loaders(num_workers=4, prefetch_factor=8, batch_bytes=float(GB))
    found = run_rule(MEMORY, Evidence().add(many, system(ram_available_bytes=8 * GB)))
    assert isinstance(found, Finding)  # 32 in flight and 8 free: half is 20
    assert "num_workers=4, prefetch_factor=5" in found.fix.text


def test_memory_that_was_not_measured_is_not_taken_for_none() -> None:
    for weighed, free in ((None, GB), (400.0 * MB, None)):
        evidence = Evidence().add(loaders(num_workers=2, batch_bytes=weighed))
        evidence.add(system(ram_available_bytes=free))
        assert isinstance(run_rule(MEMORY, evidence), Abstained)


def uneven(slow: int = 8, slow_ms: float = 240, **changes: object) -> Evidence:
    evidence = IN_ORDER.fires()
    fetches = (30 * MS,) * (100 - slow) + (round(slow_ms * MS),) * slow
    return evidence.add(loaders(num_workers=2, prefetch_factor=2, fetch_ns=fetches, **changes))


@pytest.mark.parametrize(
    ("evidence", "fires"),
    [
        (uneven(), True),
        (uneven(slow=10), True),
        (uneven(slow=11), False),  # no exception any more
        (uneven(slow_ms=90), False),
        (uneven(slow_ms=91), True),
        (uneven(in_order=False), False),
        (uneven(in_order=None), False),  # this torch has no such switch
    ],
)
def test_a_slow_exception_behind_which_others_wait_is_found(
    evidence: Evidence, fires: bool
) -> None:
    assert isinstance(run_rule(IN_ORDER, evidence), Finding) is fires


def test_even_waits_are_a_matter_of_rate_not_of_order() -> None:
    evidence = uneven()
    clean = evidence.get(Phases)
    assert clean is not None
    evidence.add(replace(clean, waits_ns=(9 * MS,) * 100))
    assert run_rule(IN_ORDER, evidence) is None


def test_one_worker_has_no_others() -> None:
    evidence = uneven()
    several = evidence.get(Loaders)
    assert several is not None
    evidence.add(Loaders(loaders=(replace(several.loaders[0], num_workers=1),)))
    assert run_rule(IN_ORDER, evidence) is None
