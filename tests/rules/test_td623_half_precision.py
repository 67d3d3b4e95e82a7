"""Half precision is named where this CPU was measured to multiply it more slowly."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.roofline import Roof, Work
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, flags
from tdiag.rules.td623_half_precision_without_units import fires


def judged(*kinds: Any, **rates: float) -> Finding | Abstained | None:
    evidence = fires()
    roof = evidence.get(Roof)
    assert roof is not None
    evidence.add(replace(roof, flops_per_s={**roof.flops_per_s, **rates}))
    return run_rule(find("TD623"), evidence.add(*kinds))


def test_the_gain_is_the_time_at_float32s_rate() -> None:
    """80 % of 105 ms, at 4 instead of 80 GFLOP/s."""
    found = judged()
    assert isinstance(found, Finding)
    assert "Products in bfloat16 take 84.0 ms per step (80%)" in found.summary
    assert found.at_best_ns == pytest.approx(84 * MS * (1 - 4 / 80), rel=0.01)
    assert "load the weights as float32" in found.fix.text


@pytest.mark.parametrize(("rate", "fires"), [(4e10, True), (4.1e10, False), (0.0, False)])
def test_it_must_be_at_most_half_as_fast(rate: float, fires: bool) -> None:
    assert isinstance(judged(bfloat16=rate), Finding) is fires


def test_another_narrow_type_that_is_slow_is_none_of_its_business() -> None:
    assert judged(bfloat16=3e11, float16=3e9) is None


def test_autocast_is_named() -> None:
    found = judged(flags(autocast_dtype="torch.bfloat16"))
    assert isinstance(found, Finding) and "leave out torch.autocast" in found.fix.text


def test_rates_measured_on_busy_cores_say_nothing() -> None:
    roof = fires().get(Roof)
    assert roof is not None
    assert isinstance(run_rule(find("TD623"), fires().add(replace(roof, certainty=0.4))), Abstained)


def test_a_small_part_of_the_step_is_left_alone() -> None:
    work = fires().get(Work)
    assert work is not None
    product, rest = work.ops
    assert judged(replace(work, ops=(product, replace(rest, host_ns=60 * 80e6)))) is None
