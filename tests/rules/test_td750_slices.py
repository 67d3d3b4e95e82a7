"""Slices taken one by one: what their backward fills and adds, and where."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.roofline import Work
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import at, budget, device_time, op_line, ops

RULE = find("TD750")


def changed(fills: float, adds: float) -> Evidence:
    evidence = RULE.fires()
    work = evidence.get(Work)
    assert work is not None
    counts = {"aten::fill_": fills, "aten::add_": adds, "aten::mm": 100.0}
    made = tuple(replace(op, count=counts[op.name]) for op in work.ops)
    return evidence.add(Work(ops=made, calls=work.calls))


@pytest.mark.parametrize(
    ("fills", "adds", "fires"),
    [
        (3.0, 2.0, True),
        (24.0, 16.0, True),  # queries, keys and values of eight layers
        (2.0, 1.0, False),
        (100.0, 0.0, False),  # a slice of each of a hundred tensors
    ],
)
def test_three_slices_of_one_tensor_are_the_least(fills: float, adds: float, fires: bool) -> None:
    assert isinstance(run_rule(RULE, changed(fills, adds)), Finding) is fires


def test_on_a_device_the_kernels_count_and_at_best_their_launches() -> None:
    """Of 330 kernels 297 fill, copy and add. The host's 100 ms are the limit."""
    evidence = RULE.fires()
    work = evidence.get(Work)
    assert work is not None
    times = {"aten::fill_": 0.2e6, "aten::add_": 0.2e6, "aten::mm": 9.6e6}
    made = tuple(replace(op, device_ns=times[op.name]) for op in work.ops)
    evidence.add(Work(ops=made, calls=600.0), budget(device=True, compute=10, launch=90))
    untraced = run_rule(RULE, evidence)
    assert isinstance(untraced, Abstained) and untraced.missing == "no device activity was traced"
    device = device_time(100, kernels_per_step=330.0)
    found = run_rule(RULE, evidence.add(device))
    assert isinstance(found, Finding)
    assert found.components == ("compute", "launch")
    kernels, spared = 0.4e6 * 0.99, 297 / 330
    assert found.speedup is not None
    assert found.speedup.low == pytest.approx(100 / (100 - 0.7 * kernels / 1e6), rel=0.01)
    assert found.at_best_ns == pytest.approx(1.5 * kernels + 90e6 * spared, rel=0.01)


def test_what_masks_select_is_no_slice() -> None:
    """Each of eight layers adds the mean of its positive elements."""
    selecting = op_line(44, "forward", 16, grad_calls=16.0, names={"masked_select": 8.0},
                        conversions={"masked_select": 8.0}, at=at(44, "forward"))  # fmt: skip
    slicing = replace(selecting, names={"__getitem__": 8.0}, conversions={})
    assert run_rule(RULE, changed(8.0, 8.0).add(ops(selecting))) is None
    assert isinstance(run_rule(RULE, changed(8.0, 8.0).add(ops(slicing))), Finding)


def test_slices_of_the_library_are_not_the_scripts() -> None:
    """The three parts of nn.MultiheadAttention's projection, in four layers that a line calls."""
    layers = op_line(44, "forward", 60, grad_calls=60.0, at=at(44, "forward"),
                     names={"multi_head_attention_forward": 4.0, "__getitem__": 1.0})  # fmt: skip
    assert run_rule(RULE, changed(12.0, 8.0).add(ops(layers))) is None
    own = replace(layers, names={"linear": 4.0, "__getitem__": 12.0})
    assert isinstance(run_rule(RULE, changed(12.0, 8.0).add(ops(own))), Finding)


def test_without_stacks_a_line_that_takes_many_more_takes_others() -> None:
    """A loss over pairs takes 500 scores; the model's layers take 12 parts."""
    evidence = changed(12.0, 8.0)
    work = evidence.get(Work)
    assert work is not None
    work = Work(ops=tuple(replace(op, at=None) for op in work.ops), calls=600.0)
    pairs = op_line(60, "loss", 1500, grad_calls=1500.0, names={"__getitem__": 500.0})
    assert run_rule(RULE, evidence.add(work, ops(pairs))) is None
    parts = op_line(44, "forward", 60, grad_calls=60.0, names={"__getitem__": 20.0})
    found = run_rule(RULE, evidence.add(work, ops(pairs, parts)))
    assert isinstance(found, Finding) and found.location == at(44)
