"""Ops, their own time, and whose backward it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.from_trace import device_evidence
from tdiag.evidence.torch_ops import HostOps
from tests.trace.making import AUTOGRAD, HOST, Event, evidence_of, op, span, step, trace_of

US = 1000


def ops(tmp_path: Path, *events: Event) -> HostOps:
    found = evidence_of(tmp_path, [step(1, 0, 10_000), *events]).get(HostOps)
    assert found is not None
    return found


def test_self_time_leaves_children_out(tmp_path: Path) -> None:
    found = ops(
        tmp_path,
        op("aten::linear", 0, 100),
        op("aten::addmm", 10, 60),
        op("aten::empty", 20, 10),
        op("aten::expand", 75, 5),
    )
    own = {o.name: o.self_ns for o in found.ops}
    assert own == {
        "aten::linear": 35 * US, "aten::addmm": 50 * US, "aten::empty": 10 * US,
        "aten::expand": 5 * US,
    }  # fmt: skip
    assert (found.per_step, found.total_per_step) == (1, 4)
    assert sum(own.values()) == 100 * US


def test_a_child_that_outlives_its_parent_is_clipped(tmp_path: Path) -> None:
    found = ops(tmp_path, op("outer", 0, 100), op("inner", 60, 90))
    own = {o.name: o.self_ns for o in found.ops}
    assert own == {"outer": 60 * US, "inner": 40 * US}


def test_threads_do_not_nest_in_each_other(tmp_path: Path) -> None:
    other = span("cpu_op", "on another thread", 10, 10, tid=AUTOGRAD)
    found = ops(tmp_path, op("main", 0, 100), other)
    assert found.per_step == 2
    assert {o.name: o.self_ns for o in found.ops}["main"] == 100 * US


def test_python_functions_and_runtime_calls_are_no_ops(tmp_path: Path) -> None:
    found = ops(
        tmp_path,
        span("python_function", "train.py(3): f", 0, 500),
        span("cuda_runtime", "cudaLaunchKernel", 5, 5),
        op("aten::add", 4, 10),
    )
    assert (found.per_step, found.total_per_step) == (1, 1)


def node(name: str, ts: float, dur: float, sequence: int) -> Event:
    arguments = {"Sequence number": sequence, "Fwd thread id": 1}
    return span(
        "cpu_op", f"autograd::engine::evaluate_function: {name}", ts, dur, tid=AUTOGRAD, **arguments
    )


def forward(name: str, ts: float, sequence: int) -> Event:
    return op(name, ts, 5, **{"Sequence number": sequence, "Fwd thread id": 0})


def test_backward_belongs_to_the_phase_that_issued_the_op(tmp_path: Path) -> None:
    events = [
        step(1, 0, 10_000),
        forward("aten::add_", 50, 3),  # without gradient: carries the next node's number
        forward("aten::addmm", 100, 3),
        forward("aten::sub", 300, 4),
        forward("aten::pow", 310, 5),
        node("PowBackward0", 500, 40, 5),
        node("SubBackward0", 550, 20, 4),
        node("AddmmBackward0", 600, 100, 3),
    ]
    trace = trace_of(tmp_path, events)
    spans = [
        ("optimizer", 0, 90 * US),
        ("forward", 90 * US, 200 * US),
        ("loss", 290 * US, 400 * US),
    ]
    found = device_evidence(trace, phases=spans).get(HostOps)
    assert found is not None
    assert found.backward_of == {"loss": 60 * US, "forward": 100 * US}


def test_a_garbage_collection_belongs_to_the_phase_it_interrupts(tmp_path: Path) -> None:
    events = [step(1, 0, 1000), forward("aten::mul", 150, 7), node("MulBackward0", 500, 30, 7)]
    spans = [("loss", 0, 140 * US), ("gc", 140 * US, 160 * US), ("loss", 160 * US, 200 * US)]
    found = device_evidence(trace_of(tmp_path, events), phases=spans).get(HostOps)
    assert found is not None
    assert found.backward_of == {"loss": 30 * US}


def test_each_step_finds_its_own_forward(tmp_path: Path) -> None:
    """Sequence numbers start again in every thread and come again in other steps."""
    events = [step(1, 0, 1000), step(2, 1000, 1000)]
    for start in (0, 1000):
        events += [forward("aten::mul", start + 100, 7), node("MulBackward0", start + 500, 30, 7)]
    spans = [("forward", 0, 200 * US), ("loss", 1000 * US, 1200 * US)]
    found = device_evidence(trace_of(tmp_path, events), phases=spans).get(HostOps)
    assert found is not None
    assert found.backward_of == {"forward": 15 * US, "loss": 15 * US}  # per step, of two
    assert found.calls_of == {"forward": 0.5, "loss": 0.5}


def test_without_phases_nothing_is_said_of_backward(tmp_path: Path) -> None:
    assert (
        ops(tmp_path, forward("aten::mul", 1, 7), node("MulBackward0", 50, 30, 7)).backward_of == {}
    )


def test_old_operator_annotations_are_no_ops(tmp_path: Path) -> None:
    events = [
        span("Operator", "ProfilerStep#1", 0, 1000),
        span("Operator", "Optimizer.step#SGD.step", 500, 100),
        span("Operator", "aten::mm", 10, 5, tid=HOST),
    ]
    found = evidence_of(tmp_path, events).get(HostOps)
    assert found is not None
    assert [o.name for o in found.ops] == ["aten::mm"]
    assert found.per_step == pytest.approx(1)


def test_what_fills_gradients_with_zeros_is_told_from_other_zeros(tmp_path: Path) -> None:
    """Two tensors one by one, one list of them; not what another op or the backward zeroes."""
    events = [step(1, 0, 1000), step(2, 1000, 1000), op("aten::zero_", 900, 40)]
    events += [span("user_annotation", "Optimizer.zero_grad#SGD.zero_grad", 100, 200)]
    events += [op("aten::zero_", 110, 10), op("aten::fill_", 112, 5), op("aten::zero_", 130, 20)]
    events += [op("aten::_foreach_zero_", 160, 30), op("aten::zero_", 165, 5)]
    events += [op("aten::zeros", 200, 50), op("aten::zero_", 210, 10)]
    found = evidence_of(tmp_path, events).get(HostOps)
    assert found is not None and found.zeroing is not None
    assert (found.zeroing.count, found.zeroing.total_ns) == (1.5, 30 * US)
    assert ops(tmp_path, op("aten::zero_", 900, 40)).zeroing is None
    to_none = span("user_annotation", "Optimizer.zero_grad#SGD.zero_grad", 100, 200)
    seen = evidence_of(tmp_path, [step(1, 0, 1000), to_none, op("aten::zero_", 900, 40)])
    host = seen.get(HostOps)
    assert host is not None and host.zeroing is not None and host.zeroing.count == 0


def test_zero_grad_is_told_as_a_part_of_the_phases_that_hold_it(tmp_path: Path) -> None:
    def zeroing(start: int, duration: int) -> Event:
        return span("user_annotation", "Optimizer.zero_grad#Adam.zero_grad", start, duration)

    events = [step(1, 0, 1000), step(2, 1000, 1000), op("aten::mm", 10, 5)]
    events += [zeroing(100, 30), zeroing(1100, 50), zeroing(2500, 400)]
    trace = trace_of(tmp_path, events)
    parts = [("prepare", 0, 200 * US), ("forward", 200 * US, 1000 * US)]
    parts += [(name, begin + 1000 * US, end + 1000 * US) for name, begin, end in parts]
    parts.append(("prepare", 2400 * US, 3000 * US))  # after the last step
    found = device_evidence(trace, phases=parts).get(HostOps)
    assert found is not None and found.zero_grad_frac == {"prepare": pytest.approx(80 / 400)}
    unmarked = device_evidence(trace).get(HostOps)
    assert unmarked is not None and unmarked.zero_grad_frac == {}
