"""Layers that share an input are worth merging, the more so the less work each does."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.torch_ops import Dispatch
from tdiag.evidence.training import Optimizer, Optimizers
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, device_time, op_line, ops, phases
from tdiag.rules.td719_layers_share_an_input import FEW_HIGH, MERGED_LOW

HEADS = op_line(31, "forward", 40, grad_calls=40.0, names={"linear": 40.0}, shared=40,
                shared_tensors=80)  # fmt: skip
SLOW = {"forward": 40.0, "loss": 1.0, "backward": 60.0, "optimizer": 20.0}
PRICE = Dispatch(op_ns=1500, grad_op_ns=7000)


def judged(*kinds: Any, line: Any = HEADS) -> Finding | None:
    evidence = find("TD719").fires()
    found = run_rule(
        find("TD719"), evidence.add(budget(**SLOW), phases(**SLOW), ops(line), PRICE, *kinds)
    )
    assert found is None or isinstance(found, Finding)
    return found


def roofline(best_ms: float) -> tuple[Work, Roof]:
    """So much of the forward pass is work, in the function of the line."""
    op = OpWork(name="aten::addmm", dims=(), dtype="float32", count=40.0, flops=best_ms * 1e6,
                moved=0.0, host_ns=9 * MS, device_ns=None, at=at(31))  # fmt: skip
    return Work(ops=(op,), calls=40.0), Roof(
        flops_per_s={"float32": 1e9}, bytes_per_s=(), source=""
    )


def test_it_is_at_the_line_that_goes_through_them() -> None:
    """A list of experts, whose own line makes the calls."""
    found = judged(line=replace(HEADS, shared_at=at(44, "mixture")))
    assert found is not None and found.location == at(44, "mixture")
    assert "one input, or on slices of it, at train.py:44" in found.summary


def test_calls_far_beyond_their_work_win_what_merging_won_at_least() -> None:
    """100 ms of calls and backward, of which 6 are work at best."""
    found = judged(*roofline(2.0))
    assert found is not None and found.location is not None and found.location.line == 31
    assert found.speedup is not None
    saved = 100 * (1 - 1 / MERGED_LOW)
    assert found.speedup.low == pytest.approx(121 / (121 - saved), rel=0.02)


@pytest.mark.parametrize("known", [(), roofline(25.0)])
def test_calls_that_work_or_may_work_promise_nothing(known: tuple[Any, ...]) -> None:
    found = judged(*known)
    assert found is not None and found.speedup is not None and found.speedup.low == 1.0


def test_merging_saves_nothing_of_what_the_products_need() -> None:
    """Eight experts whose products take 80 of 100 ms at best."""
    found = judged(*roofline(80.0))
    assert found is not None
    assert found.at_best_ns == pytest.approx(20 * MS, rel=0.02)


def test_the_backward_of_small_layers_may_take_four_times_its_share() -> None:
    other = op_line(20, "forward", 40, grad_calls=40.0, names={"linear": 1.0}, at=at(20, "stem"))
    found = run_rule(
        find("TD719"),
        find("TD719").fires().add(budget(**SLOW), phases(**SLOW), ops(HEADS, other), PRICE),
    )
    assert isinstance(found, Finding)
    assert found.at_best_ns == pytest.approx((20 + 60 * 4 / 5) * MS * 39 / 40, rel=0.01)


def test_the_high_end_includes_the_updates_of_their_parameters() -> None:
    updated = Optimizer(name="SGD", created_at=at(9), tensors=80, config={})
    alone, all_of_them = judged(), judged(Optimizers(optimizers=(updated,)))
    assert alone is not None and all_of_them is not None
    assert all_of_them.at_best_ns - alone.at_best_ns == pytest.approx(20 * MS * 39 / 40)


@pytest.mark.parametrize(
    ("shared", "best_ms", "told"),
    [
        (4, 7.0, True),  # the gates of a cell, 100 ms with 21 of work
        (4, 20.0, False),  # which reach 60 % of what the machine does
        (3, 7.0, False),  # queries, keys and values
    ],
)
def test_a_few_layers_are_merged_if_they_reach_little(
    shared: int, best_ms: float, told: bool
) -> None:
    found = judged(*roofline(best_ms), line=replace(HEADS, shared=shared))
    assert (found is not None) == told
    if found:
        assert found.cls == "compute" and found.speedup is not None
        saved = 100 * (1 - 1 / FEW_HIGH)  # and at most the optimizer's 20 ms
        assert 121 / (121 - saved) <= found.speedup.high < 121 / (101 - saved)


def test_a_few_layers_whose_work_is_unknown_are_left_alone() -> None:
    assert judged(line=replace(HEADS, shared=4)) is None


def test_on_a_device_as_much_of_its_idle_time_goes_as_of_the_hosts() -> None:
    on_cpu = judged()
    found = judged(budget(device=True, compute=21, launch=100), device_time(121))
    assert on_cpu is not None and found is not None
    assert found.components == ("launch",)
    whole = sum(SLOW.values())
    assert found.at_best_ns == pytest.approx(on_cpu.at_best_ns / whole * 100, rel=0.01)
