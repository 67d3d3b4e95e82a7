"""Backward's time by line: parts of calls, loops and written-out tensors use it where it was
measured, and otherwise the calls' time in forward, within a factor of four."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, OpLine, Ops
from tdiag.model.diagnosis import Finding
from tdiag.rules.call_parts import MEASURED_ERROR_FRAC, backward_share, part_of_calls
from tdiag.rules.catalogue import find
from tdiag.rules.contracted import found_in
from tdiag.rules.examples import MS, budget, op_line, ops, phases
from tdiag.rules.fixed_cost import LITTLE_WORK_FRAC, cost_of
from tdiag.rules.loops import loop_time

CLEAN = phases(forward=10, backward=20)


def line(number: int, backward_ms: float | None, **more: float) -> OpLine:
    found = op_line(number, "forward", 10, grad_calls=10.0, elapsed_ns=5 * MS)
    times = {} if backward_ms is None else {"elapsed_ns": backward_ms * MS}
    return replace(found, backward=times | more)


def measured(*lines: OpLine, other_ms: float = 0.0) -> Ops:
    return replace(ops(*lines), backward_other_ns=other_ms * MS)


def test_without_a_measurement_the_share_is_within_a_factor_of_four() -> None:
    share = backward_share([one := line(1, None)], ops(one, line(2, None)), lambda x: x.elapsed_ns)
    assert not share.measured
    assert (share.least, share.likely, share.most) == pytest.approx((0.2, 0.5, 0.8))


@pytest.mark.parametrize(("mine", "others", "other"), [(16.0, 2.0, 2.0), (1.0, 17.0, 2.0)])
def test_a_measured_share_is_known_to_a_fifth_of_it_or_of_the_rest(
    mine: float, others: float, other: float
) -> None:
    all_of_them = measured(one := line(1, mine), line(2, others), other_ms=other)
    share = backward_share([one], all_of_them, lambda x: x.elapsed_ns)
    error = MEASURED_ERROR_FRAC * min(mine / 20, 1 - mine / 20)
    assert share.measured
    assert share.likely == pytest.approx(mine / 20)
    unknown = 0.8 * other / 20  # as much as half of the calls' time in forward can cause
    assert share.least == pytest.approx(mine / 20 - error)
    assert share.most == pytest.approx(mine / 20 + error + unknown)


def test_calls_of_a_moment_cause_no_backward_that_belongs_to_no_line() -> None:
    """Half of backward is a function's own; the part is 1 ‰ of the calls."""
    small = replace(line(1, 5.0), again_ns=0.01 * MS)
    share = backward_share(
        [small], measured(small, line(2, 5.0), other_ms=10), lambda x: x.again_ns
    )
    assert share.most < 0.01


def test_a_part_has_its_own_time_of_backward_else_its_share_of_the_lines() -> None:
    copied = replace(line(1, 12.0, copied_ns=9 * MS), copied_ns=1 * MS, again_ns=2.5 * MS)
    all_of_them = measured(copied, line(2, 8.0))
    of_copies = part_of_calls(CLEAN, all_of_them, None, lambda x: x.copied_ns)
    repeated = part_of_calls(CLEAN, all_of_them, None, lambda x: x.again_ns)
    assert of_copies and repeated
    assert of_copies.backward_ns == pytest.approx(9 * MS)
    assert repeated.backward_ns == pytest.approx(6 * MS)  # half of its line


def test_the_cost_of_lines_and_of_loops_has_their_own_backward() -> None:
    all_of_them = measured(one := line(1, 18.0), line(2, 2.0))
    cost = cost_of([one], CLEAN, all_of_them, Dispatch(op_ns=1000, grad_op_ns=5000))
    assert cost.spent_ns == pytest.approx(23 * MS)
    assert cost.most_ns == pytest.approx((23 + 20 * MEASURED_ERROR_FRAC * 0.1) * MS)
    looping = loop_time([one], all_of_them, CLEAN, None, None)
    assert looping.backward_ns == pytest.approx(18 * MS)


def test_what_is_saved_at_least_leaves_the_work_at_a_fifth_of_the_best() -> None:
    cost = cost_of(
        [one := line(1, 18.0)],
        CLEAN,
        measured(one, line(2, 2.0)),
        Dispatch(op_ns=1, grad_op_ns=5e4),
    )
    assert cost.least_saved(0.1, None) == pytest.approx(0.9 * cost.dispatch_ns)
    assert cost.least_saved(0.1, 0.2 * MS) == pytest.approx(
        0.9 * cost.least_ns - 0.2 * MS / LITTLE_WORK_FRAC
    )
    assert cost.least_saved(0.1, 100 * MS) == pytest.approx(0.9 * cost.dispatch_ns)


def test_a_penalty_costs_its_calls_and_the_backward_that_was_measured() -> None:
    summed = replace(line(1, 6.0), penalty_ns=5 * MS)
    evidence = Evidence().add(
        budget(forward=10, backward=20), CLEAN, measured(summed, line(2, 14.0))
    )
    found = run_rule(find("TD748"), evidence)
    assert isinstance(found, Finding) and found.speedup
    error = 20 * MEASURED_ERROR_FRAC * 0.3
    assert found.at_best_ns == pytest.approx((5 + 6 + error) * MS)
    assert found.speedup.low == pytest.approx(30 / (30 - 6 + error), abs=0.001)


def test_what_is_written_out_has_the_backward_that_was_measured() -> None:
    written = replace(line(1, 18.0), contracted_ns=5 * MS, contraction="outer")
    found = found_in(
        budget(forward=10, backward=20), CLEAN, measured(written, line(2, 2.0)), "outer"
    )
    assert found
    assert found.ns == pytest.approx(23 * MS)
    assert found.most_ns == pytest.approx((23 + 20 * MEASURED_ERROR_FRAC * 0.1) * MS)
    assert "their backward, ±" in found.gain(2.0, 20.0).why
