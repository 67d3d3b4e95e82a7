"""Batches that the loop makes itself, and what picking samples one by one leaves to collect."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule, run_rules
from tdiag.diagnose.verdict import judge
from tdiag.evidence.sampled import CallFrame, CallTrees, StackLine
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import CallRow, Calls
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import (
    MS,
    at,
    budget,
    environment,
    flags,
    op_line,
    ops,
    phases,
    stack,
    stacks,
    system,
)


def test_whole_batches_leave_the_collector_nothing_to_do() -> None:
    evidence = find("TD213").fires()
    alone = run_rule(find("TD213"), evidence)
    step = budget(data_wait_cpu=1.6, forward=0.5, backward=0.8, optimizer=0.2, gc=2)
    collecting = replace(phases(data_wait=1.6, forward=0.5), gc_in_wait_ns=1.5 * MS)
    with_gc = run_rule(find("TD213"), evidence.add(step, collecting))
    assert isinstance(alone, Finding) and isinstance(with_gc, Finding)
    more = with_gc.at_best_ns - alone.at_best_ns
    assert more == pytest.approx(1.5 * MS, rel=0.01)


@pytest.mark.parametrize(
    ("changed", "fires"),
    [
        ({}, True),
        ({"cores_allowed": 1.0}, False),  # nowhere to make them meanwhile
        ({"cores_allowed": 2.0, "cores_used": 1.985}, False),  # both are busy already
        ({"cores_allowed": 2.0, "cores_used": 1.4}, True),
        ({"cpu_ms": 15.0}, False),  # it mostly waits: for what is not known
        ({"prepare_ms": 1.0}, False),  # under a twentieth of the step
        ({"device": "cuda:0"}, False),  # it may wait for the device: no trace shows when it idles
        ({"device": "cuda:0", "traced": True}, True),
        ({"device": "cuda:0", "traced": True, "cpu_ms": 15.0}, False),
        ({"data_wait": 0.1}, False),  # a DataLoader is asked, too
    ],
)
def test_batches_made_by_hand_could_be_made_meanwhile(changed: dict[str, Any], fires: bool) -> None:
    told = {"prepare_ms": 40.0, "cpu_ms": None, "cores_allowed": 8.0, "device": "cpu"} | changed
    making = told["prepare_ms"]
    waited = {"data_wait": told["data_wait"]} if "data_wait" in told else {}
    by_hand = phases(prepare=making, forward=20, **waited)
    cpu = {"prepare": (making if told["cpu_ms"] is None else told["cpu_ms"]) * MS}
    evidence = Evidence().add(
        budget(prepare=making, forward=20, device="traced" in told), replace(by_hand, cpu_ns=cpu),
        system(cores_allowed=told["cores_allowed"], cores_used=told.get("cores_used", 1.0)),
        environment(device=told["device"]),
    )  # fmt: skip
    assert isinstance(run_rule(find("TD214"), evidence), Finding) is fires


@pytest.mark.parametrize("drawn", [True, False])
def test_an_environment_cannot_run_ahead(drawn: bool) -> None:
    stepping = phases(prepare=40, forward=20)
    evidence = Evidence().add(
        budget(prepare=40, forward=20), stepping, system(), environment(),
        flags(agent_library="" if drawn else "gymnasium"),
    )  # fmt: skip
    if drawn:
        sample = at(60, "sample", "/venv/torch/distributions/categorical.py")
        rows = (CallRow(at=sample, calls=3.0, own_ns=1e5, total_ns=1e5),)
        evidence.add(Calls(steps=10, rows=rows))
    assert run_rule(find("TD214"), evidence) is None


def test_what_an_agent_draws_from_its_memory_cannot_be_made_ahead() -> None:
    step = budget(prepare=40, forward=20)
    drawing = replace(phases(prepare=40, forward=20), cpu_ns={"prepare": 40.0 * MS})
    evidence = Evidence().add(step, drawing, system(), environment())
    assert isinstance(run_rule(find("TD214"), evidence), Finding)
    evidence.add(replace(drawing, acts=True))
    assert run_rule(find("TD214"), evidence) is None


def test_python_that_makes_the_batch_is_preprocessing_whichever_finding_comes_first() -> None:
    step = budget(prepare=10, forward=0.5, backward=0.6, optimizer=0.2)
    making = phases(prepare=10, forward=0.5, backward=0.6, optimizer=0.2)
    sampled = stacks((stack(18, 0.85, "batch (me/train.py)", function="batch"),))
    calls = [
        op_line(18, phase, 2, at=at(18, "batch"), elapsed_ns=0.05 * MS)
        for phase in ("prepare", "forward")
    ]
    each = step.step_ns
    clean = Steps(
        durations_ns=(each,) * 100, mean_ns=each, median_ns=each, p90_ns=each, count=100,
        boundary="optimizer", total_steps_seen=100,
    )  # fmt: skip
    evidence = Evidence().add(
        clean, step, making, system(cores_allowed=2.0), environment(), sampled, ops(*calls)
    )
    findings, _ = run_rules(evidence)
    assert [finding.code for finding in findings][:2] == ["TD709", "TD214"]
    assert judge(evidence, step, findings).cls == "cpu"


def by_hand(*lines: StackLine) -> list[Finding]:
    """40 of 60 ms make the batch; ``train`` calls the model."""
    making = phases(prepare=40, forward=20)
    calls = (
        op_line(60, "forward", 9, at=at(60, "train")),
        op_line(62, "optimizer", 9, at=at(62, "train")),
    )
    evidence = Evidence().add(
        budget(prepare=40, forward=20), making, system(), environment(), stacks(lines), ops(*calls)
    )
    return run_rules(evidence)[0]


def test_work_that_makes_a_batch_comes_before_workers_that_would_spread_it() -> None:
    """A loop over neighbours: its samples lie on several lines, some in the standard library."""
    first, second, *_ = by_hand(
        stack(20, 0.3, "Random.choice (python3.11/random.py)", "prepare", "Sampler.sample"),
        stack(19, 0.25, "Sampler.sample (me/train.py)", "prepare", "Sampler.sample"),
        stack(58, 0.1, "", "prepare", "train"),
    )
    assert (first.code, second.code) == ("TD219", "TD214")
    assert first.location is not None and first.location.line == 20
    assert "in Sampler.sample, most of it at train.py:20" in first.summary
    assert "First TD219" in second.fix.text


def test_a_function_takes_what_it_calls_with_it() -> None:
    """``render`` has 44 % of the samples, and ``disc``, which it calls, 40 %."""
    making = phases(prepare=40, forward=20)
    calls = (
        op_line(60, "forward", 9, at=at(60, "train")),
        op_line(62, "optimizer", 9, at=at(62, "train")),
    )
    named = [("train", 58, -1), ("collect", 34, 0), ("render", 65, 1), ("disc", 59, 2)]
    trees = CallTrees(
        training=tuple(
            CallFrame(name=name, file=at(1).file, line=line, parent=parent, frac=0.5, user=True)
            for name, line, parent in named
        ),
        workers=(),
    )
    sampled = stacks((
        stack(65, 0.27, "", "prepare", "render"), stack(59, 0.25, "", "prepare", "disc"),
        stack(35, 0.1, "", "prepare", "collect"),
    ))  # fmt: skip
    evidence = Evidence().add(
        budget(prepare=40, forward=20), making, system(), environment(), sampled, ops(*calls), trees
    )
    found = run_rule(find("TD219"), evidence)
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == 65
    assert "is in render and what it calls, most of it at train.py:65" in found.summary


def test_a_batch_made_by_the_lines_of_the_loop_itself_has_no_function_to_name() -> None:
    found = by_hand(
        stack(58, 0.3, "pad (numpy/lib)", "prepare", "train"),
        stack(59, 0.3, "stack (numpy/lib)", "prepare", "train"),
    )
    assert "TD219" not in [finding.code for finding in found]
