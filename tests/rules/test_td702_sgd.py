"""SGD's fused form: what it saves depends on the tensors' size and on SGD's settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch
from tdiag.evidence.training import Optimizer
from tdiag.model.diagnosis import Finding
from tdiag.rules import sgd
from tdiag.rules import td702_optimizer_not_fused as td702
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, budget, environment, optimizers

DISPATCH = Dispatch(op_ns=1500, grad_op_ns=7000)
SETTINGS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.1},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
]


def of(**config: Any) -> Optimizer:
    return optimizers("SGD", fused=None, **config).optimizers[0]


def saved(tensor_us: float, **config: Any) -> tuple[float, float]:
    """Least and most of the time of 60 tensors, each of which takes so long."""
    spent = 60 * tensor_us * 1000
    low, high = sgd.saved_ns(of(**config), spent, DISPATCH)
    return low / spent, high / spent


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_calls_are_those_that_torch_makes(settings: dict[str, Any]) -> None:
    made = torch.zeros(4, requires_grad=True)
    made.grad = torch.ones(4)
    optimizer = torch.optim.SGD([made], lr=0.1, foreach=False, **settings)
    optimizer.step()  # the first makes the buffer instead of multiplying it
    with torch.profiler.profile() as profiler:
        optimizer.step()
    names = ("aten::add_", "aten::mul_", "aten::add")
    counted = sum(event.name in names for event in profiler.events())
    assert counted == sgd.calls(of(**settings))


def test_passes_over_memory_are_those_of_the_calls_and_of_the_fused_kernel() -> None:
    """A loop moves 3 numbers, with momentum 8, with weight decay 3 more; the kernel 3 or 5."""
    assert [round(sgd.fewer_passes(of(**settings)), 2) for settings in SETTINGS] == [
        1.0, 2.0, 1.6, 2.2, 2.8,
    ]  # fmt: skip


def test_small_tensors_gain_by_their_calls_and_large_ones_by_their_passes() -> None:
    """Three calls of fixed cost alone: 4.2 to 6.3 times as fast. A millisecond of work: 1.1 to 1.8,
    of which 27 µs may be fixed cost."""
    assert saved(7, momentum=0.9) == pytest.approx((1 - 1 / 4.2, 1 - 1 / 6.3))
    low, high = saved(1000, momentum=0.9)
    assert low == pytest.approx(1 - 1 / 1.12, abs=0.01)
    assert high == pytest.approx(0.973 * (1 - 1 / 1.76) + 0.027 * (1 - 1 / 6.3))


def test_the_foreach_form_has_merged_the_calls_already() -> None:
    low, high = saved(7, momentum=0.9, foreach=True)
    assert (low, high) == pytest.approx((1 - 1 / 2.4, 1 - 1 / 6.3))


def test_without_the_price_of_a_call_the_range_spans_both() -> None:
    spent = 60 * MS
    low, high = sgd.saved_ns(of(momentum=0.9), spent, None)
    assert (low / spent, high / spent) == pytest.approx((1 - 1 / 1.12, 1 - 1 / 6.3))


def test_new_tensors_of_nesterovs_momentum_may_cost_much_more() -> None:
    decaying = {"momentum": 0.9, "weight_decay": 0.1}
    highs = [saved(10_000, **decaying, nesterov=x)[1] for x in (False, True)]
    assert [round(1 / (1 - x), 1) for x in highs] == [2.4, 9.8]


@pytest.mark.parametrize(
    ("tensor_us", "settings", "said"),
    [
        (400, {}, False),  # measured: the fused form moves as much and is slower
        (400, {"momentum": 0.9}, True),
        (2.5, {}, True),  # a call of plain SGD on a small tensor
    ],
)
def test_advice_that_costs_time_is_not_given(
    tensor_us: float, settings: dict[str, Any], said: bool
) -> None:
    spent = 60 * tensor_us / 1000
    step = budget(forward=spent / 2, backward=spent / 2, optimizer=spent)
    evidence = Evidence().add(
        step, DISPATCH, environment(), optimizers("SGD", fused=None, **settings)
    )
    assert isinstance(run_rule(find("TD702"), evidence), Finding) is said


def test_kernels_of_plain_sgd_gain_nothing_on_a_device() -> None:
    left = {}
    for momentum in (0.0, 0.9):
        step = budget(forward=5, backward=5, optimizer=5, device=True)
        used = optimizers("SGD", fused=None, momentum=momentum)
        found = td702.check(step, used, environment(), None, None, None, None, None, DISPATCH)
        assert found is not None and found.gain is not None
        left[momentum] = found.gain.high_cuts["optimizer"]
    assert left == pytest.approx({0.0: 1.0, 0.9: 5 / 8})
