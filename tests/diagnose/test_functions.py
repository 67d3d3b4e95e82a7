"""Trainings whose model is written with functions: samples divide what no mark does."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose.functions import divided
from tdiag.evidence.device import Device
from tdiag.evidence.from_run import load_run
from tdiag.evidence.sampled import StackLine
from tdiag.evidence.steps import Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.rules.examples import MS, at, op_line, ops, phases, stack, stacks

from ..evidence.making import Run

COUNTED = ops(
    op_line(57, "forward", 4, at=at(57, "train"), grad_calls=4.0),
    op_line(59, "optimizer", 4, at=at(59, "train")),
)
BEFORE = stack(55, 0.3, function="train")
FORWARD = stack(57, 0.2, "", "forward", function="train")
AFTER = stack(62, 0.1, function="train")
COUNTS = {"backward": 1.0}  # no call of a module


def wall_of(*lines: StackLine, clean: Phases, evidence: Evidence | None = None) -> dict[str, float]:
    evidence = (evidence or Evidence()).add(stacks(lines), COUNTED, clean)
    found = divided(evidence)
    assert found is not None
    return {name: ns / MS for name, ns in found.wall_ns.items()}


def test_samples_divide_the_time_until_the_backward() -> None:
    clean = replace(phases(COUNTS, forward=60, backward=35, optimizer=5), cpu_ns={"forward": 30e6})
    evidence = Evidence().add(stacks((BEFORE, FORWARD, AFTER)), COUNTED, clean)
    found = divided(evidence)
    assert found is not None
    parts = {name: ns / MS for name, ns in found.wall_ns.items()}
    assert parts == pytest.approx(
        {"prepare": 30, "forward": 20, "after_step": 10, "backward": 35, "optimizer": 5}
    )
    # Of 30 ms on a core the forward has 20, and the 40 ms beside it the rest, in proportion.
    assert found.cpu_ns["prepare"] == pytest.approx(7.5 * MS)
    again = divided(evidence.add(found))
    assert again is not None and again.wall_ns == pytest.approx(found.wall_ns)


def test_a_criterion_leaves_the_forward_in_the_preparation() -> None:
    """Before a loss module's call all time is ``prepare``."""
    clean = phases(COUNTS, prepare=60, loss=2, backward=35, optimizer=5)
    parts = wall_of(BEFORE, FORWARD, clean=clean)
    assert parts == pytest.approx(
        {"prepare": 36, "forward": 24, "loss": 2, "backward": 35, "optimizer": 5}
    )


def test_with_a_loader_the_marks_show_what_follows_the_step() -> None:
    clean = phases(COUNTS, data_wait=1, forward=60, backward=35, after_step=10)
    parts = wall_of(BEFORE, FORWARD, AFTER, clean=clean)
    assert parts["after_step"] == 10
    assert parts["prepare"] == pytest.approx(36)


def test_otherwise_the_phases_stay() -> None:
    called = phases({"forward": 1.0}, prepare=30, forward=30, backward=40)
    functions = phases(COUNTS, forward=60, backward=40)
    device = Device(kind="cuda", name="H200")
    assert wall_of(BEFORE, FORWARD, clean=called)["prepare"] == 30  # a module is called
    assert wall_of(BEFORE, clean=functions)["forward"] == 60  # no line of the forward is known
    few = replace(BEFORE, self_frac=0.01), replace(FORWARD, self_frac=0.01)
    assert wall_of(*few, clean=functions)["forward"] == 60  # 40 samples
    on_device = Evidence().add(device)
    assert wall_of(BEFORE, FORWARD, clean=functions, evidence=on_device)["forward"] == 60
    assert divided(Evidence().add(functions)) is functions
    assert divided(Evidence()) is None


def test_lines_that_record_gradients_are_the_forward_of_a_run_without_modules(
    tmp_path: Path,
) -> None:
    def step(run: Run, number: int) -> None:
        run.gap(6)
        run.backward(4)
        run.update(1)

    run = Run(tmp_path).steps(30, step)
    lines = [
        {"at": ["/u/train.py", line, "train"], "phase": "prepare", "calls": 2, "elapsed": 100,
         "grad_calls": grad_calls}
        for line, grad_calls in ((7, 0), (8, 2))
    ]  # fmt: skip
    run.add("ops", steps=1, lines=lines, **{"pass": 1})
    evidence = load_run(run.write())
    ops, clean = evidence.get(Ops), evidence.get(Phases)
    assert ops is not None and clean is not None and clean.without_modules
    assert {line.at.line: line.phase for line in ops.lines} == {7: "prepare", 8: "forward"}
