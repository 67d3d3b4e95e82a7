"""Waste in counted calls, priced by the device's time."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose.by_device import of_device, of_issuing, spared
from tdiag.diagnose.engine import run_rule
from tdiag.diagnose.replayed import replayed
from tdiag.evidence.replay import Replay
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine
from tdiag.model.diagnosis import Abstained, Finding, Fix
from tdiag.rules.base import Found, Gain
from tdiag.rules.catalogue import BY_ISSUE, BY_WORK, all_rules, find, page
from tdiag.rules.examples import MS, budget, device_time, family, kernels, op_line, ops, phases
from tests.trace.machine import Machine, Operation
from tests.trace.making import evidence_of

SPENT = {"forward": 30.0, "backward": 60.0}


def work(forward_ms: float, backward_ms: float) -> Work:
    def op(device_ms: float, backward: bool) -> OpWork:
        return OpWork(
            name="aten::mm", dims=((8, 8), (8, 8)), dtype="float32", count=1.0, flops=0.0,
            moved=0.0, host_ns=0.0, device_ns=device_ms * MS, backward=backward,
        )  # fmt: skip

    return Work(ops=(op(forward_ms, False), op(backward_ms, True)), calls=2.0)


def lines() -> tuple[OpLine, OpLine]:
    """Both are launched in 1 ms; the second costs the device three times as much, and two thirds of
    it are thrown away."""
    body = replace(op_line(10, "forward", 4, grad_calls=4.0, elapsed_ns=MS), work_ns=0.5 * MS)
    head = replace(op_line(20, "forward", 4, grad_calls=4.0, elapsed_ns=MS), work_ns=1.5 * MS)
    return body, replace(head, thrown_away_ns=1.0 * MS)


def evidence() -> Evidence:
    """The host launches all in 2 ms; the device computes for 90, a third of it in forward."""
    return Evidence().add(
        budget(device=True, compute=90, other=10), phases(forward=2, backward=3), ops(*lines()),
        device_time(100), work(30, 60),
    )  # fmt: skip


def test_waste_is_priced_by_the_device_not_by_the_launches() -> None:
    found = run_rule(find("TD728"), evidence())
    assert isinstance(found, Finding)
    thrown, backward = 30 * MS / 2, 60 * MS  # half of forward, and a part of backward
    assert thrown < found.at_best_ns <= thrown + backward
    assert found.components == ("compute",)
    assert {x.source for x in found.evidence} == {"trace", "ops"}
    assert found.evidence[0].value == pytest.approx(thrown)
    assert "estimated work" in found.why_gain


def test_large_tensors_that_are_summed_count_by_what_they_cost_the_device() -> None:
    body, head = lines()
    summed = replace(head, thrown_away_ns=0.0, contracted_ns=head.work_ns, contraction="product")
    found = run_rule(find("TD721"), evidence().add(ops(body, summed)))
    assert isinstance(found, Finding)
    assert "67.5 ms per step with its backward" in found.summary  # three quarters of 90
    assert found.components == ("compute",)


def test_the_optimizers_kernels_are_no_part_of_forward() -> None:
    with_update = evidence().add(kernels(family("gemm", 20), family("optimizer", 10)))
    found = run_rule(find("TD728"), with_update)
    assert isinstance(found, Finding)
    assert found.evidence[0].value == pytest.approx((30 - 10) * MS / 2)


@pytest.mark.parametrize("lacking", [Work, "work_ns"])
def test_without_the_devices_work_nothing_is_said(lacking: object) -> None:
    without = evidence()
    if lacking is Work:
        del without.facts[Work]
    else:
        without.add(ops(*(replace(x, work_ns=0.0) for x in lines())))
    assert isinstance(run_rule(find("TD728"), without), Abstained)


def test_on_a_cpu_nothing_changes() -> None:
    body, head = lines()
    on_host = Evidence().add(
        budget(**SPENT, other=10), phases(**SPENT),
        ops(replace(body, work_ns=0.0), replace(head, work_ns=0.0)),
    )  # fmt: skip
    found = run_rule(find("TD728"), on_host)
    assert isinstance(found, Finding)
    assert found.components == ("forward", "backward")


def test_rules_say_on_their_pages_how_a_device_counts() -> None:
    by_work = {rule.code for rule in all_rules() if rule.by_work}
    assert by_work == {rule.code for rule in all_rules() if BY_WORK in page(rule)}
    assert "TD728" in by_work
    by_issue = {rule.code for rule in all_rules() if rule.by_issue}
    assert by_issue == {rule.code for rule in all_rules() if BY_ISSUE in page(rule)}
    assert "TD719" in by_issue


def priced(gain_ms: float, step: Budget, issued: float = 0.0) -> Gain:
    """A gain that the calls' work was estimated for, and the share of calls that go with it."""
    gain = Gain(gain_ms * MS, gain_ms * MS, "all of it", ("forward", "backward"))
    found = of_device(Found("wasted", (), Fix("do not", "safe"), gain), step, (issued, issued)).gain
    assert found is not None
    return found


def test_the_estimated_work_may_be_wrong_by_a_factor_of_two() -> None:
    gain = priced(30, budget(device=True, compute=90, other=10))
    assert gain.low_ns == pytest.approx(90 * MS * 1 / (1 + 2 * 2))  # 1 : 2 may be 1 : 4
    assert gain.high_ns == pytest.approx(90 * MS * 1 / 2)  # or 2 : 2


def test_the_host_may_be_the_limit_where_the_device_has_less_to_do(tmp_path: Path) -> None:
    """The host needs 12 µs and the launch for each kernel: of the 40 that one takes, at most 28
    go."""
    layers: list[Operation] = [("op", 12.0), ("kernel", "ampere_sgemm_128x64", 40.0)]
    traced = evidence_of(tmp_path, Machine().run([layers * 50] * 5))
    replay = traced.get(Replay)
    assert replay is not None
    step = budget(device=True, compute=2)
    gain = priced(1.9, step)
    assert replayed(gain, Evidence().add(step), step) == gain, "nothing to replay"
    limited = replayed(gain, Evidence().add(step, replay), step)
    assert gain.low_ns > 1.6 * MS
    assert MS < limited.low_ns <= 28 / 40 * 2 * MS


def test_what_need_not_be_computed_need_not_be_issued(tmp_path: Path) -> None:
    """The device works for 4 µs of the 14 or more that each kernel costs the host: half of the
    kernels are half of the step, if they go, and nothing, if they only get shorter."""
    layers: list[Operation] = [("op", 12.0), ("kernel", "ampere_sgemm_128x64", 4.0)]
    replay = evidence_of(tmp_path, Machine().run([layers * 50] * 5)).get(Replay)
    assert replay is not None
    step = budget(device=True, compute=0.2, launch=0.5)
    shorter, fewer = (
        replayed(priced(0.1, step, issued), Evidence().add(step, replay), step)
        for issued in (0.0, 0.5)
    )
    assert shorter.high_ns < 0.05 * step.step_ns
    assert 0.4 * step.step_ns < fewer.low_ns <= fewer.high_ns < 0.55 * step.step_ns
    assert "launch" in fewer.components


def test_where_the_device_is_the_limit_fewer_calls_win_nothing(tmp_path: Path) -> None:
    """Half of the host's time goes, of 12 µs for each kernel of 4 or of 40."""
    found = Found("twice", (), Fix("once", "safe"), Gain(MS, MS, "half", ("forward",)))
    for kernel_us, least, most in ((4.0, 0.25, 0.51), (40.0, 0.0, 0.02)):
        layers: list[Operation] = [("op", 12.0), ("kernel", "ampere_sgemm_128x64", kernel_us)]
        folder = tmp_path / str(kernel_us)
        folder.mkdir()
        replay = evidence_of(folder, Machine().run([layers * 50] * 5)).get(Replay)
        assert replay is not None
        step = budget(device=True, compute=kernel_us / 20, launch=0.5)
        host = phases(forward=1, backward=1, data_wait=5)
        gain = of_issuing(found, Evidence().add(step, host, device_time(1))).gain
        assert gain is not None
        again = replayed(gain, Evidence().add(step, replay), step)
        assert least * step.step_ns <= again.low_ns <= again.high_ns <= most * step.step_ns


def test_the_loss_counts_only_where_the_fix_saves_something_there() -> None:
    """Of the host's 10 ms, 2 in the loss, 4 go; the device waits for 8 ms, and 2 in the loss."""
    step = budget(device=True, launch=8, python_loss=2)
    held = Evidence().add(step, phases(forward=8, loss=2), device_time(10))
    found = Found("twice", (), Fix("once", "safe"), Gain(4 * MS, 4 * MS, "half", ("forward",)))
    forward = of_issuing(found, held).gain
    assert found.gain is not None and forward is not None
    assert forward.high_ns == pytest.approx(4 * MS)  # 8 × 4 ÷ 8
    assert "python_loss" not in forward.components
    both = Gain(4 * MS, 4 * MS, "half", ("forward", "python_loss"))
    mixed = of_issuing(Found("twice", (), found.fix, both), held).gain
    assert mixed is not None and mixed.high_ns == pytest.approx(4 * MS)  # 10 × 4 ÷ 10
    assert mixed.high_cuts["host python_loss"] == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("compute_ms", "flops", "left"),
    [
        (2, 1e6, 0.25),  # as much as of the calls
        (2, 1e9, 0.5),  # their arithmetic needs 1 ms
        (9, 1e6, None),  # the device works longer than it waits: its kernels are not short
    ],
)
def test_one_call_instead_of_many_has_shorter_kernels(
    compute_ms: float, flops: float, left: float | None
) -> None:
    product = replace(work(2, 0).ops[0], flops=flops)
    roof = Roof(flops_per_s={"float32": 1e12}, bytes_per_s=((1 << 30, 1e12),), source="sheet")
    step = budget(device=True, compute=compute_ms, launch=8)
    held = Evidence().add(step, phases(forward=8), device_time(10))
    found = Found("many", (), Fix("one", "safe"), Gain(0, 6 * MS, "all but one", ("forward",)))
    gain = of_issuing(found, held.add(Work(ops=(product,), calls=9), roof)).gain
    assert gain is not None
    for tag in ("gemm", "copy"):  # copies within the device count as computing
        assert gain.high_cuts.get(tag) == (None if left is None else pytest.approx(left))
    assert ("compute" in gain.components) is (left is not None)


def test_without_a_traced_device_nothing_is_said_of_its_idle_time() -> None:
    rule = next(rule for rule in all_rules() if rule.by_issue)
    found = run_rule(rule, rule.fires().add(budget(device=True, compute=5, launch=5)))
    assert isinstance(found, Abstained)
    assert found.missing == "no device activity was traced"


def test_the_hosts_clock_tells_how_many_calls_go() -> None:
    """Of the 30 ms on the host, the calls that repeat take 8 with their backward, at least 7."""
    by_host = Found("again", (), Fix("once", "safe"), Gain(7 * MS, 8 * MS, "", ("forward",)))
    times = phases(forward=10, backward=20, optimizer=50)
    assert spared(by_host, times) == pytest.approx((7 / 30, 8 / 30))
    assert spared(None, times) == (0.0, 0.0)


def test_only_rules_whose_fix_spares_calls_look_at_the_hosts_clock() -> None:
    """The repeated projection costs the device nothing to speak of, and the host a quarter."""
    again = replace(op_line(20, "forward", 20, elapsed_ns=MS), work_ns=0.2 * MS, again_ns=MS)
    rest = replace(op_line(24, "forward", 60, elapsed_ns=3 * MS), work_ns=1.8 * MS)
    counted = evidence().add(ops(replace(again, again_ns=0.95 * MS), rest))
    found = run_rule(find("TD727"), counted)
    assert isinstance(found, Finding)
    assert found.components == ("compute", "other")


def test_a_device_may_multiply_zeros_as_fast_as_it_looks_rows_up() -> None:
    """Half of forward's work is a product of which a ten thousandth is not zero."""
    body, head = lines()
    one_hot = replace(head, work_ns=body.work_ns, mostly_zero_ns=0.5 * MS, nonzero_ns=50.0)
    counted = evidence().add(ops(body, replace(one_hot, thrown_away_ns=0.0)))
    found = run_rule(find("TD739"), counted)
    assert isinstance(found, Finding) and found.speedup
    assert found.speedup.low == 1.0
    assert found.at_best_ns > 15 * MS
    assert not found.advisory
