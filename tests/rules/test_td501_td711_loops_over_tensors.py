"""Loops over tensors: what is advised instead of them, and what those outside the loss cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, Ops
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, op_line, ops, phases, stack, stacks


def finding(code: str, evidence: Evidence) -> Finding:
    found = run_rule(find(code), evidence)
    assert isinstance(found, Finding), found
    return found


@pytest.mark.parametrize(
    ("text", "made", "advised", "unadvised"),
    [
        ("if labels[i] == labels[j]:", "bool", "labels[:, None] == labels[None, :]", "where("),
        ("if int(y[i]) != int(y[j]):", "int", "y[:, None] == y[None, :]", "where("),
        ("hinge = max(margin + d, 0)", "bool", ".clamp(min=0)", "whole tensor;"),
        ("if i == j: total += d.norm()", "", "torch.cdist", "where("),
    ],
)
def test_at_most_two_ways_that_fit_are_advised(
    text: str, made: str, advised: str, unadvised: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"    {text}\n")
    evidence = find("TD501").fires()
    counted = evidence.get(Ops)
    assert counted is not None
    line = counted.lines[0]
    here = at(1, file=str(script))
    evidence.add(ops(replace(line, conversions={made: 64.0} if made else {}, at=here)))
    fix = finding("TD501", evidence).fix.text
    ways = fix.split("whole tensors: ")[1]
    assert advised in ways and unadvised not in ways
    assert ways.count(";") < 2 and ways.count("clamp") < 2


def test_a_loop_outside_the_loss_is_priced_by_its_functions_samples() -> None:
    """The phase's calls are all in the loop, but half of its time is spent elsewhere."""
    evidence = find("TD711").fires()
    evidence.add(stacks((stack(70, 0.25, "", "after_step", "diversity"), stack(90, 0.25))))
    assert finding("TD711", evidence).at_best_ns == pytest.approx(18 * MS / 4, rel=0.01)


def test_samples_on_the_loops_own_line_count_whatever_function_their_frame_names() -> None:
    """A comprehension: the probe's call says ``<listcomp>``, the sampled line its function."""
    evidence = find("TD711").fires()
    counted = evidence.get(Ops)
    assert counted is not None
    evidence.add(ops(replace(counted.lines[0], at=at(70, "<listcomp>"))))
    assert finding("TD711", evidence).at_best_ns > 0


def frame(line: int, function: str, parent: int, share: float) -> CallFrame:
    return CallFrame(
        name=function, file=at(line).file, line=line, parent=parent, frac=share, user=True
    )


@pytest.mark.parametrize("inside", [True, False])
def test_a_loop_whose_time_is_pythons_is_named_by_the_python_line(inside: bool) -> None:
    """Boxes matched by a function of plain numbers: the loop's few torch calls take no time."""
    evidence = find("TD501").fires()
    loop, python = stack(52, 0.1, "", "loss", "forward"), stack(7, 0.3, "", "", "iou")
    parent = 0 if inside else -1
    tree = (frame(52, "forward", -1, 0.4), frame(7, "iou", parent, 0.3))
    evidence.add(stacks((python, loop)), CallTrees(training=tree, workers=()))
    found = finding("TD501", evidence)
    assert found.location is not None
    assert found.location.line == (7 if inside else 52)
    assert ("in Python at train.py:7 in iou" in found.summary) is inside
    assert ("the loop that runs iou at train.py:7" in found.fix.text) is inside


def test_no_way_is_advised_twice(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("s = s + x[t, y[t]]\ns = s + x[t, y[t]]\n")
    evidence = find("TD501").fires()
    counted = evidence.get(Ops)
    assert counted is not None
    lines = (replace(counted.lines[0], at=at(n, file=str(script))) for n in (1, 2))
    fix = finding("TD501", evidence.add(ops(*lines))).fix
    assert fix.text.count("gather") == 1 and fix.code.count("gather") == 1


@pytest.mark.parametrize(("phase", "calls", "fires"), [
    ("prepare", 900, True), ("prepare", 120, False), ("after_step", 900, False),
])  # fmt: skip
def test_before_the_forward_many_calls_are_a_loop_without_a_value_read(
    phase: str, calls: int, fires: bool
) -> None:
    """Noise added step by step, where a closed form draws it at once."""
    step = {phase: 20, "forward": 3, "backward": 5}
    noise = op_line(30, phase, calls, in_loop=True, elapsed_ns=20 * MS, names={"mul": float(calls)})
    evidence = Evidence().add(
        budget(**step), phases(**step), ops(noise), Dispatch(op_ns=1500, grad_op_ns=7000)
    )
    found = run_rule(find("TD711"), evidence)
    assert isinstance(found, Finding) is fires
    if isinstance(found, Finding):
        assert found.at_best_ns == pytest.approx(20 * MS)
        assert "conversions" not in found.summary


@pytest.mark.parametrize(("kind", "in_loss"), [("item", True), ("masked_select", False)])
def test_a_loop_in_forward_is_the_losss_only_if_python_gets_values(
    kind: str, in_loss: bool
) -> None:
    """Messages of each relation of a graph are rows that a mask picks: the model's work."""
    line = op_line(62, "forward", 90, grad_calls=90.0, in_loop=True, at=at(62, "message"),
                   conversions={kind: 90.0}, names={"__getitem__": 90.0})  # fmt: skip
    step, clean = budget(forward=20, backward=30), phases(forward=20, backward=30)
    evidence = Evidence().add(step, clean, ops(line), Dispatch(op_ns=1500, grad_op_ns=7000))
    assert isinstance(run_rule(find("TD501"), evidence), Finding) is in_loss
