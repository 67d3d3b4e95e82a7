"""Attention that silently takes its slow form."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.device import DevicePart, DeviceParts
from tdiag.evidence.torch_ops import FusedAttention, Ops
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, device_time, ops

RULE = find("TD614")


def judged(*kinds: Any) -> Finding:
    found = run_rule(RULE, RULE.fires().add(*kinds))
    assert isinstance(found, Finding)
    return found


def called(*why: str, line: int = 18, times: float = 6.0) -> FusedAttention:
    return FusedAttention(at=at(line, "forward"), per_step=times, unfused=why)


def calling(*calls: FusedAttention) -> Ops:
    return replace(ops(), fused_attention=calls)


@pytest.mark.parametrize(
    ("why", "said", "safety"),
    [
        ("dimensions", "four dimensions", "safe"),
        ("sizes", "head size of the values", "safe"),
        ("mask with gradient", "Detach the mask", "review"),
        ("dropout", "Set the dropout", "review"),
    ],
)
def test_the_reason_says_what_to_do(why: str, said: str, safety: str) -> None:
    found = judged(calling(called(why)))
    assert said in found.fix.text and "train.py:18" in found.fix.text
    assert found.fix.safety == safety


def test_the_call_with_a_reason_is_the_place_and_without_one_it_is_to_be_found() -> None:
    found = judged(calling(called(line=7, times=90.0), called("sizes", line=8)))
    assert found.location is not None and found.location.line == 8
    unknown = judged(calling(called()))
    assert unknown.fix.text.startswith("Find out why no fused kernel is used")


def test_more_can_be_won_where_dropout_goes() -> None:
    with_dropout, without = (judged(calling(called("sizes", *why))) for why in (("dropout",), ()))
    cost = 40 * MS * (1 + 90 / 60)
    assert with_dropout.at_best_ns == pytest.approx(cost * (1 - 1 / 3.56), rel=0.02)
    assert without.at_best_ns == pytest.approx(cost * (1 - 1 / 2.3), rel=0.02)


def test_dropout_alone_is_a_choice_of_how_to_train() -> None:
    """The default of many models: worth knowing, and no reason to call a training unhealthy."""
    assert judged(calling(called("dropout"))).advisory


def test_on_a_device_kernels_count_and_dropout_is_no_reason() -> None:
    step = budget(device=True, compute=90, launch=10)
    part = DevicePart(name="aten::bmm", count=36, device_ns=30.0 * MS)
    parts = DeviceParts(kernels=(), ops=(part,), modules=(), functions=())
    found = judged(step, parts, device_time(100))
    assert found.at_best_ns == pytest.approx(20 * MS, rel=0.02)
    assert "dropout" not in found.fix.text
    without = run_rule(RULE, RULE.fires().add(step))
    assert isinstance(without, Finding) and without.advisory, "no launches' ops: nothing is claimed"


def test_weights_that_are_asked_for_are_written_out_and_no_call_of_this_kind() -> None:
    """``out, _ = self.attention(x, x, x)``: need_weights is on unless it is switched off."""
    rule = find("TD608")
    asking = replace(ops(), attention=(), fused_attention=(called("weights", line=30),))
    found = run_rule(rule, rule.fires().add(asking))
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == 30 and "need_weights=False" in found.fix.text
    slow = judged(calling(called("weights", line=30, times=90.0), called("sizes", line=8)))
    assert slow.location is not None and slow.location.line == 8
