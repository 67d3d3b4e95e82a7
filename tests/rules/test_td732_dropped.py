"""TD732 beyond its example: where backward must go on, and lines without samples."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.evidence.roofline import OpWork, Work
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.training import DroppedAt, DroppedGradients, GraphShares
from tdiag.rules import td732_gradients_dropped as rule
from tdiag.rules.base import Abstain, Found
from tdiag.rules.examples import MS, at, budget, device_time, stack, stacks

STEP = budget(forward=40, backward=60)
LINE = DroppedAt(
    at=at(88), values=300, kept=100, beyond=True, module="Generator",
    shares=GraphShares(nodes=0.5, products=0.75, numbers=0.6),
)  # fmt: skip
SAMPLED = stacks((stack(88, 0.4, phase="backward"), stack(96, 0.2, phase="backward")))


def checked(*lines: DroppedAt, sampled: Stacks | None = SAMPLED) -> Found | None:
    return rule.check(STEP, DroppedGradients(lines=lines), sampled, None, None)


def won(found: Found | None) -> tuple[float, float]:
    assert found is not None and found.gain is not None
    return found.gain.low_ns / MS, found.gain.high_ns / MS


@pytest.mark.parametrize(("sampled", "spent"), [(SAMPLED, 40), (None, 60)])
def test_from_nine_tenths_of_the_least_share_to_the_largest(
    sampled: Stacks | None, spent: float
) -> None:
    """With samples: the line has two thirds of those of backward."""
    assert won(checked(LINE, sampled=sampled)) == pytest.approx((spent * 0.45, spent * 0.75))


def test_a_critic_no_larger_than_its_generator_is_left_alone() -> None:
    """Its weight gradients are less than a quarter of that backward, and most code lets them be."""
    critic = replace(LINE, beyond=False, shares=replace(LINE.shares, products=0.25))
    assert checked(critic) is None
    found = checked(critic, LINE)
    assert found is not None and "Generator" in found.summary
    assert checked(replace(LINE, shares=replace(LINE.shares, products=0.2))) is not None


def test_it_says_what_to_cut() -> None:
    cut, passed = (
        checked(LINE),
        checked(replace(LINE, beyond=False, shares=replace(LINE.shares, products=0.4))),
    )
    assert cut is not None and passed is not None
    assert "detach what comes from Generator" in cut.fix.text
    assert "not those of Generator" in passed.fix.text


def test_on_a_device_backward_is_that_of_all_lines() -> None:
    step = budget(device=True, compute=60)
    with pytest.raises(Abstain, match="no device activity was traced"):
        rule.check(step, DroppedGradients(lines=(LINE,)), SAMPLED, None, None)
    product = OpWork(
        name="aten::mm", dims=((8, 8), (8, 8)), dtype="float32", count=1, flops=1e6, moved=0,
        host_ns=1e6, device_ns=20 * MS, backward=True,
    )  # fmt: skip
    work = Work(ops=(product, replace(product, backward=False)), calls=20)
    device = device_time(60, components_ns={"compute": 60 * MS})
    found = rule.check(step, DroppedGradients(lines=(LINE,)), SAMPLED, work, device)
    assert won(found) == pytest.approx((0, 20 * 3 / 4))
    assert found and found.gain and found.gain.components == ("compute",)
