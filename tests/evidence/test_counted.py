"""What was counted, of the passes in which it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.from_run import load_run
from tdiag.evidence.torch_ops import Ops

from .making import Run


def test_a_stall_in_one_pass_makes_no_line_dear(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(30, lambda run, number: run.pair(2, 5))
    for number, elapsed in ((1, [200, 1000]), (2, [90_000, 1600])):
        lines = [
            {"at": ["/u/train.py", at, "loss"], "phase": "loss", "calls": 10 * number, "elapsed": t}
            for at, t in zip((7, 8), elapsed, strict=True)
        ]
        run.add("ops", steps=number, lines=lines, **{"pass": number})
    ops = load_run(run.write()).get(Ops)
    assert ops is not None
    assert {line.at.line: line.elapsed_ns for line in ops.lines} == pytest.approx({7: 200, 8: 800})


def test_a_stall_makes_no_broadcast_of_a_line_dear(tmp_path: Path) -> None:
    """Of 90 ms in the second pass 88 are a stall: its part of the line counts, not its time."""
    run = Run(tmp_path).steps(30, lambda run, number: run.pair(2, 5))
    for number, elapsed in ((1, 2000), (2, 180_000)):
        line = {"at": ["/u/train.py", 7, "forward"], "phase": "forward", "calls": 2 * number,
                "elapsed": elapsed, "contracted": elapsed // 2,
                "contraction": "product"}  # fmt: skip
        run.add("ops", steps=number, lines=[line], **{"pass": number})
    ops = load_run(run.write()).get(Ops)
    assert ops is not None
    assert ops.lines[0].elapsed_ns == pytest.approx(2000)
    assert ops.lines[0].contracted_ns == pytest.approx(1000)


def test_backward_by_line_is_that_of_each_lines_fastest_complete_pass(tmp_path: Path) -> None:
    """The second pass stalls in line 8 and in what no line made; the third has no hooks on part of
    its nodes, so that the lines have too little."""
    run = Run(tmp_path).steps(30, lambda run, number: run.pair(2, 5))
    passes: list[tuple[int, int, int | None]] = [
        (600, 300, 100),
        (500, 90_000, 9_000),
        (5, 5, None),
    ]
    for number, (seven, eight, other) in enumerate(passes, 1):
        lines = [
            {"at": ["/u/train.py", at, "forward"], "phase": "forward", "calls": 10, "elapsed": 50,
             "copied": 25, "backward": {"elapsed": spent, "copied": spent // 2}}
            for at, spent in ((7, seven), (8, eight))
        ]  # fmt: skip
        known = {} if other is None else {"backward_other": other}
        run.add("ops", steps=1, lines=lines, **known, **{"pass": number})
    ops = load_run(run.write()).get(Ops)
    assert ops is not None
    spent = {line.at.line: line.backward["elapsed_ns"] for line in ops.lines}
    assert spent == pytest.approx({7: 500, 8: 300})
    assert ops.backward_other_ns == pytest.approx(100)
    assert ops.measured_backward_ns == pytest.approx(900)
    assert all(
        line.backward["copied_ns"] == pytest.approx(0.5 * spent[line.at.line], rel=0.25)
        for line in ops.lines
    )


@pytest.mark.parametrize(
    ("boundary", "phase"), [("backward", "unattributed"), ("optimizer", "prepare")]
)
def test_calls_have_the_phase_that_the_clean_steps_give_their_time(
    tmp_path: Path, boundary: str, phase: str
) -> None:
    """Without an optimizer and a loader, an update by hand and the next batch are one stretch."""

    def step(run: Run, number: int) -> None:
        run.gap(2)
        run.forward(6)
        run.gap(1)
        run.backward(10)
        if boundary == "optimizer":
            run.update(3)

    run = Run(tmp_path, boundary=boundary).steps(30, step)
    line = {"at": ["/u/train.py", 7, "update"], "phase": "prepare", "calls": 4, "elapsed": 100}
    run.add("ops", steps=1, lines=[line], **{"pass": 1})
    ops = load_run(run.write()).get(Ops)
    assert ops is not None
    assert [line.phase for line in ops.lines] == [phase]


def test_on_a_device_separate_gradients_are_of_the_hosts_time(tmp_path: Path) -> None:
    """The other parts are of the estimated work, which is little: a call of torch.autograd.grad is
    priced by the host's clock."""
    run = Run(tmp_path).steps(30, lambda run, number: run.pair(2, 5))
    line = {"at": ["/u/train.py", 7, "loss"], "phase": "backward", "calls": 3, "elapsed": 3000,
            "work": 100, "again": 50, "separate": 2000}  # fmt: skip
    run.add("ops", steps=1, lines=[line], **{"pass": 1})
    ops = load_run(run.write()).get(Ops)
    assert ops is not None
    assert ops.lines[0].separate_ns == pytest.approx(2000)
    assert ops.lines[0].again_ns == pytest.approx(1500)
