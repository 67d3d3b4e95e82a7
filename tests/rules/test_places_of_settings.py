"""A finding about a setting names the line that made it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch
from tdiag.evidence.training import Flags, Module, Modules, Setting, Settings
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import (
    MS,
    at,
    budget,
    flags,
    module,
    op_line,
    ops,
    phases,
    rank_time,
    ranks_of,
    stack,
    stacks,
)


def setting(
    name: str, value: bool | int | str = "made", line: int = 7, per_step: float = 0.0
) -> Setting:
    return Setting(name=name, value=value, at=at(line), per_step=per_step)


def found(code: str, evidence: Evidence) -> Finding:
    finding = run_rule(find(code), evidence)
    assert isinstance(finding, Finding), finding
    return finding


def line_of(code: str, *made: Setting) -> int | None:
    """Of the rule's own example."""
    place = found(code, find(code).fires().add(Settings(settings=made))).location
    return place.line if place else None


def test_each_setting_has_its_line() -> None:
    ddp = setting("torch.nn.parallel.DistributedDataParallel")
    assert line_of("TD601", setting("float32_matmul_precision", "highest")) == 7
    assert line_of("TD601", setting("float32_matmul_precision", "high")) is None
    assert line_of("TD602", setting("cudnn.benchmark", False)) == 7
    assert line_of("TD602", setting("cudnn.benchmark", True)) is None
    assert line_of("TD610", setting("default_dtype", "torch.float64")) == 7
    assert line_of("TD610", setting("default_dtype", "torch.float32")) != 7
    assert line_of("TD704", setting("anomaly", True), setting("anomaly", False, 9)) == 7
    assert line_of("TD809", setting("empty_cache", per_step=1.0)) == 7
    assert line_of("TD809", setting("empty_cache")) is None  # before the loop
    assert line_of("TD901", setting("torch.nn.DataParallel")) == 7
    assert line_of("TD904", ddp) == 7


def test_gradients_are_zeroed_at_the_line_that_fills_with_zeros() -> None:
    hidden = op_line(12, "forward", 1, names={"zero_": 1.0, "linear": 8.0}, elapsed_ns=5 * MS)
    resets = op_line(31, "prepare", 60, names={"zero_": 60.0})
    evidence = find("TD703").fires().add(ops(hidden, resets))
    place = found("TD703", evidence).location
    assert place is not None
    assert place.line == 31


def test_micro_batches_are_reduced_at_the_line_that_calls_the_model() -> None:
    wrapped: Module = replace(module("DistributedDataParallel"), trained_at=at(44))
    place = found("TD905", find("TD905").fires().add(Modules(modules=(wrapped,)))).location
    assert place is not None
    assert place.line == 44


def test_collections_that_a_line_asks_for_are_told_from_pythons_own() -> None:
    step = budget(forward=10, gc=10)
    evidence = Evidence().add(step, phases({"gc": 1.0}, gc=10))
    pythons = found("TD707", evidence)
    assert pythons.location is None
    own = Settings(settings=(setting("gc.collect", per_step=0.01),))
    assert found("TD707", evidence.add(own)).location is None
    asked = Settings(settings=(setting("gc.collect", per_step=1.0),))
    finding = found("TD707", evidence.add(asked))
    assert finding.location is not None
    assert "gc.collect() at train.py:7" in finding.fix.text
    assert pythons.speedup is not None and finding.speedup is not None
    assert pythons.speedup.low == pytest.approx(20 / 15, abs=0.001)  # half of them stay
    assert finding.speedup.low == pytest.approx(20 / 12.5, abs=0.001)


def profiled(*kinds: Flags | Dispatch | Settings) -> Finding:
    """5 % of 2,000 samples in the profiler's own functions, 80 calls."""
    lines = (
        stack(60, 0.05, "profile.__exit__ (autograd/profiler.py)"),
        stack(61, 0.9, "Linear.forward (modules/linear.py)", "forward"),
    )
    evidence = Evidence().add(
        budget(forward=6, loss=1, backward=9, other=4),
        flags(user_profiler=True),
        ops(op_line(20, "forward", 80, grad_calls=76.0)),
        stacks(lines),
        Settings(
            settings=(
                setting("torch.profiler.profile", line=58),
                setting("torch.autograd.profiler.profile", line=60, per_step=1.0),
            )
        ),
        *kinds,
    )
    return found("TD704", evidence)


def test_the_scripts_own_profiler_costs_what_its_functions_and_each_call_take() -> None:
    """1 ms of a step of 20 ms by samples; with 1 µs a call 80 µs to 936 µs more."""
    finding = profiled()
    assert finding.cls == "overhead"
    assert finding.location is not None
    assert finding.location.line == 58
    assert abs(finding.recoverable_ns - 1 * MS) < 0.3 * MS
    priced = profiled(Dispatch(op_ns=2500, grad_op_ns=8000, profiled_ns=1000))
    assert priced.recoverable_ns - finding.recoverable_ns > 0.3 * MS
    assert abs(priced.at_best_ns - finding.at_best_ns - 0.936 * MS) < 0.01 * MS


def test_a_cost_that_was_not_measured_is_not_claimed() -> None:
    evidence = Evidence().add(
        budget(forward=6, backward=9),
        flags(user_trace="cProfile"),
        Settings(settings=(setting("cProfile.Profile"),)),
    )
    finding = found("TD704", evidence)
    assert finding.speedup is None
    assert finding.location is not None
    assert "not measured" in finding.summary


def test_a_late_rank_is_late_at_the_line_with_most_of_its_forwards_samples() -> None:
    late = rank_time(1, 6, forward=64, backward=30, comm=6)
    others = [rank_time(n, 60, forward=10, backward=30, comm=60) for n in (0, 2)]
    own = stack(24, 0.5, "own (me/train.py)")
    slow = ops(op_line(24, "forward", 9), op_line(25, "forward", 90))
    evidence = Evidence().add(ranks_of(others[0], late, others[1]), slow)
    lines = stacks((own, stack(25, 0.2), stack(31, 0.3, "", "backward")))
    finding = found("TD902", evidence.add(lines))
    assert finding.location is not None
    assert finding.location.line == 24
    even = stacks((own, stack(25, 0.5)))
    assert found("TD902", evidence.add(even)).location is None
