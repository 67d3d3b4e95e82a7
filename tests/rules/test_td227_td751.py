"""Batches that take long to hand over, and optimizers with a group for each tensor."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.budget import make_budget
from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import CallTrees
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.evidence.training import Optimizers
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, environment, loaders, op_line, ops, phases, system

HANDED, GROUPS = find("TD227"), find("TD751")


def found(code: str, evidence: Evidence) -> Finding | None:
    result = run_rule(find(code), evidence)
    return result if isinstance(result, Finding) else None


def test_objects_are_told_from_tensors() -> None:
    tensors = found("TD227", HANDED.fires())
    assert tensors and "many tensors" in tensors.summary
    evidence = HANDED.fires()
    trees = evidence.get(CallTrees)
    assert trees
    pickled = tuple(replace(x, frac=0.03) if "rebuild" in x.name else x for x in trees.training)
    objects = found("TD227", evidence.add(replace(trees, training=pickled)))
    assert objects and "many Python objects" in objects.summary


def test_waiting_for_a_worker_is_no_handing_over() -> None:
    evidence = HANDED.fires()
    trees = evidence.get(CallTrees)
    assert trees
    waits = tuple(replace(x, frac=0.58) if "poll" in x.name else x for x in trees.training)
    assert found("TD227", evidence.add(replace(trees, training=waits))) is None


def test_fetches_that_are_as_long_bound_the_gain() -> None:
    """A batch takes a worker 90 ms: of a step of 100 ms only 10 are to be won for sure."""
    evidence = HANDED.fires().add(loaders(num_workers=1, load_ns=90 * MS, collate_ns=0.0))
    bound = found("TD227", evidence)
    assert bound and bound.speedup and bound.speedup.low == pytest.approx(100 / 90, abs=0.01)


@pytest.mark.parametrize(
    ("workers", "load_ms", "cpu_ms"),
    [
        (1, 4.0, 4.0),
        (1, 70.0, 60.0),
        (0, 4.0, 60.0),  # the sampler, in the training process
    ],
)
def test_a_wait_that_no_fetch_takes_long_enough_for_is_not_preprocessing(
    workers: int, load_ms: float, cpu_ms: float
) -> None:
    step = 100 * MS
    clean = Steps(
        durations_ns=(step,) * 100, mean_ns=step, median_ns=step, p90_ns=step, count=100,
        boundary="optimizer", total_steps_seen=100,
    )  # fmt: skip
    fed = loaders(
        num_workers=workers, load_ns=load_ms * MS, load_cpu_ns=load_ms * MS, collate_ns=0.0,
        collate_cpu_ns=0.0, runqueue_ns=0.0,
    )  # fmt: skip
    wall = phases(data_wait=60, forward=40)
    made = make_budget(Evidence().add(environment(), clean, wall, fed, system()))
    assert made and made.components_ns["data_wait_cpu"] == cpu_ms * MS
    assert made.components_ns.get("data_wait", 0) == (60 - cpu_ms) * MS


def grouped(**changes: object) -> Evidence:
    evidence = GROUPS.fires()
    known = evidence.get(Optimizers)
    assert known
    changed = tuple(replace(x, **changes) for x in known.optimizers)
    return evidence.add(Optimizers(optimizers=changed))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"groups": 400, "settings": 12}, True),
        ({"groups": 24, "settings": 24}, False),  # a learning rate for each layer
        ({"groups": 6, "settings": 1}, False),
    ],
)
def test_only_many_groups_that_are_alike_are_told(changes: dict[str, object], told: bool) -> None:
    assert (found("TD751", grouped(**changes)) is not None) == told


@pytest.mark.parametrize(
    ("config", "form"),
    [
        ({"fused": True, "foreach": None}, ""),
        ({"fused": None, "foreach": True}, ""),
        ({"fused": None, "foreach": None}, "fused=True"),
        ({"foreach": None}, "foreach=True"),  # NAdam has no fused form
    ],
)
def test_joined_groups_are_updated_at_once(config: dict[str, object], form: str) -> None:
    """On a CPU torch updates the tensors of a group one by one unless it is told otherwise."""
    one = found("TD751", grouped(config=config))
    assert one
    assert ("pass" in one.fix.text) == bool(form) and form in one.fix.text
    assert form in one.fix.code


def test_the_calls_that_groups_make_raise_the_low_end() -> None:
    plain, counted = GROUPS.fires(), GROUPS.fires()
    counted.add(Ops(steps=2, lines=ops(op_line(90, "optimizer", 427 * 20)).lines))
    few, many = found("TD751", plain), found("TD751", counted)
    assert few and few.speedup and many and many.speedup
    assert many.speedup.low == pytest.approx(83 / (83 - 425 * 20 * 0.0015), abs=0.01)
    assert few.speedup.low < many.speedup.low


def test_a_fused_form_comes_after_joining_the_groups() -> None:
    """It updates one group at a time."""
    slow = find("TD702").fires()
    known = slow.get(Optimizers)
    assert known and found("TD702", slow)
    apart = replace(known.optimizers[0], groups=100, settings=2)
    assert found("TD702", slow.add(Optimizers(optimizers=(apart,)))) is None
