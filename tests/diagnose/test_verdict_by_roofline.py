"""What the machine's rates say of a step that computes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.verdict import GUESS_CONFIDENCE
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.rules.examples import at, stack, stacks, system

from .test_verdict import ROOF, STEP, finding, run, work


def test_without_a_roofline_nothing_is_healthy_and_little_is_sure() -> None:
    """Absence of findings is no proof of health."""
    for kind in (Roof, Work):
        found = run({"data_wait_cpu": 4}, without=(kind,))
        assert (found.cls, found.healthy) == ("compute", False)
        assert found.confidence <= GUESS_CONFIDENCE
        assert "how efficiently is unknown: not captured" in found.summary


def test_a_roof_measured_without_a_core_proves_no_health() -> None:
    assert not run({"data_wait_cpu": 4}, replace(ROOF, certainty=0.4)).healthy


def test_a_step_far_below_what_the_machine_reaches_is_not_healthy() -> None:
    """Its arithmetic takes 10 of 96 ms at best, and its 60 calls cannot explain the rest."""
    found = run({"data_wait_cpu": 4}, work(10e6))
    assert (found.cls, found.healthy) == ("compute", False)
    assert "at 10% of what this machine reaches: its work needs 10.0 ms of 96.0 ms" in found.summary


def test_it_says_where_most_is_lost() -> None:
    op = replace(work(10e6).ops[0], name="aten::exp", at=at(31, "pairs", file="train.py"))
    traced = Work(ops=(op,), calls=60)
    assert "; most is lost in pairs at train.py:31, first by exp" in run({}, traced).summary
    line = stack(35, 0.5, "", function="pairs")  # its file is absolute
    found = run({}, traced, stacks((line,)))
    assert "; most is lost in pairs at train.py:35, first by exp" in found.summary


@pytest.mark.parametrize(("share", "named"), [(0.6, True), (0.3, False)])
def test_a_backward_of_the_users_own_is_named_before_the_forward(share: float, named: bool) -> None:
    """A trace assigns its ops to the forward that they belong to."""
    op = replace(work(10e6).ops[0], name="aten::exp", at=at(31, "pairs", file="train.py"))
    lines = stack(13, share, "", function="Root.backward"), stack(42, 0.2, "", "backward")
    frames = [
        ("train", at(1).file, 42, -1, True), ("_engine_run_backward", "graph.py", 0, 0, False),
        ("Root.backward", at(1).file, 13, 1, True),
    ]  # fmt: skip
    tree = tuple(
        CallFrame(name=name, file=file, line=line, parent=parent, frac=0.6, user=user)
        for name, file, line, parent, user in frames
    )
    found = run({}, Work(ops=(op,), calls=60), stacks(lines), CallTrees(training=tree, workers=()))
    said = "; 60% is Root.backward and what it calls, most of it at train.py:13"
    assert (said in found.summary) is named
    assert ("most is lost in pairs" in found.summary) is not named


def test_what_calls_cost_and_work_does_not_is_overhead() -> None:
    """A cell written out over time steps: 20,000 calls, none of them slow, and no loop found."""
    found = run({"data_wait_cpu": 4}, work(10e6, calls=20_000))
    assert found.cls == "overhead"
    assert found.share == pytest.approx(0.96 - 0.10, abs=0.01)
    assert "around 20,000 calls of torch, which would take 30.0 ms" in found.summary
    crowded = system(cores_machine=2, cores_used=1.0, machine_busy_cores=2.0,
                     training_queued_frac=0.6)  # fmt: skip
    assert run({"data_wait_cpu": 4}, work(10e6, calls=20_000), crowded).cls != "overhead"
    efficient = run({"data_wait_cpu": 4}, work(70e6, calls=20_000))
    assert (efficient.cls, efficient.healthy) == ("compute", True)


@pytest.mark.parametrize(
    ("share", "cls"), [(0.0, "overhead"), (0.4, "overhead"), (0.5, "compute"), (0.8, "compute")]
)
def test_a_long_call_of_unknown_arithmetic_is_no_overhead(share: float, cls: str) -> None:
    """Sorting: its bytes take a hundredth of its time. Beside many small calls, which are overhead
    if they take longer."""
    many = work(5e6, calls=20_000)
    sort = replace(many.ops[0], name="aten::sort", flops=0.0, count=1.0, host_ns=share * STEP)
    found = run({"data_wait_cpu": 4}, replace(many, ops=(*many.ops, sort)))
    assert (found.cls, found.healthy) == (cls, False)


def test_fewer_threads_than_cores_are_not_healthy_where_the_work_is_limited_by_them() -> None:
    halved = replace(ROOF, flops_per_s={"float32": 0.5e9}, threads=1)
    found = run({"data_wait_cpu": 4}, replace(ROOF, in_force=halved), work(45e6))
    assert (found.cls, found.healthy) == ("compute", False)
    assert "1 of 2 threads" in found.summary
    small = run({"data_wait_cpu": 4}, replace(ROOF, in_force=halved), work(5e6))
    assert small.cls == "compute" and "threads" not in small.summary
    double = finding("compute", 0.6)  # the computing itself has a larger cause
    named = run(
        {"data_wait_cpu": 4}, replace(ROOF, in_force=halved), work(45e6), findings=(double,)
    )
    assert named.cls == "compute"
