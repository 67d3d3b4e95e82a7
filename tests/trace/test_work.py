"""Floating-point operations and bytes of the traced ops, against hand-computed ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tdiag.evidence.from_trace import device_evidence
from tdiag.evidence.from_trace.work import flops, moved
from tdiag.evidence.roofline import Work

from .making import Event, evidence_of, launched, op, span, step, trace_of


def shaped(name: str, ts: float, dur: float, *dims: tuple[int, ...], kind: str = "float") -> Event:
    sizes: Any = {"Input Dims": [list(d) for d in dims], "Input type": [kind] * len(dims)}
    return op(name, ts, dur, **sizes)


IMAGE, FILTER, OUT = (8, 16, 32, 32), (64, 16, 3, 3), (8, 64, 16, 16)
HEADS = (2, 4, 128, 32)


@pytest.mark.parametrize(
    ("name", "dims", "expected"),
    [
        ("aten::mm", ((32, 64), (64, 128)), 2 * 32 * 64 * 128),
        ("aten::addmm", ((128,), (32, 64), (64, 128)), 2 * 32 * 64 * 128),
        ("aten::bmm", ((4, 32, 64), (4, 64, 128)), 4 * 2 * 32 * 64 * 128),
        ("aten::linear", ((5, 32, 64), (128, 64), (128,)), 2 * 5 * 32 * 64 * 128),
        # Stride 2: the output is known from the backward.
        ("aten::mkldnn_convolution", (IMAGE, FILTER), 2 * 8 * 64 * 16 * 16 * 16 * 9),
        ("aten::convolution_backward", (OUT, IMAGE, FILTER), 4 * 8 * 64 * 16 * 16 * 16 * 9),
        (
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            (HEADS,) * 3,
            2 * 2 * 2 * 4 * 128 * 128 * 32,
        ),
        ("aten::mkldnn_rnn_layer", ((80, 32, 64), (512, 64), (512, 128)), 5120 * 512 * 192),
        ("aten::mul", ((32, 64), (32, 64)), 0),
    ],
)
def test_arithmetic_of_a_call(name: str, dims: tuple[tuple[int, ...], ...], expected: int) -> None:
    assert flops(name, dims, {(IMAGE, FILTER): OUT}) == expected


@pytest.mark.parametrize(
    ("name", "dims", "kinds", "expected"),
    [
        ("aten::mm", ((32, 64), (64, 128)), ("float",) * 2, 4 * (32 * 64 + 64 * 128 + 32 * 128)),
        ("aten::mul", ((32, 64), (32, 64)), ("float",) * 2, 4 * 3 * 32 * 64),
        ("aten::mul_", ((32, 64), (64,)), ("c10::Half",) * 2, 2 * (2 * 32 * 64 + 64)),
        ("aten::zero_", ((32, 64),), ("double",), 8 * 32 * 64),
        ("aten::sum", ((32, 64),), ("float",), 4 * 32 * 64),
        # Rows that are looked up, not the table.
        ("aten::index_select", ((50_000, 64), (10,)), ("float", "long int"), 2 * 4 * 10 * 64),
    ],
)
def test_bytes_of_a_call(
    name: str, dims: tuple[tuple[int, ...], ...], kinds: tuple[str, ...], expected: int
) -> None:
    assert moved(name, dims, kinds, {}) == expected


LAYER = [
    shaped("aten::linear", 10, 80, (32, 64), (128, 64)),
    shaped("aten::t", 11, 2, (128, 64)),
    shaped("aten::addmm", 20, 60, (128,), (32, 64), (64, 128)),
    shaped("aten::copy_", 21, 5, (32, 128), (32, 128)),
]


def test_an_op_is_counted_once_where_the_work_is_done(tmp_path: Path) -> None:
    """Not the wrapper around a product, nor the copy inside it, nor a view."""
    events = [step(1, 0, 200), *LAYER, shaped("aten::relu", 100, 20, (32, 128)),
              shaped("aten::clamp_min", 101, 18, (32, 128))]  # fmt: skip
    work = evidence_of(tmp_path, events).get(Work)
    assert work is not None
    assert {x.name: x.flops for x in work.ops} == {
        "aten::addmm": 2 * 32 * 64 * 128,
        "aten::clamp_min": 0,
    }
    assert work.calls == 2  # linear and relu
    assert work.ops[0].host_ns == 60_000


def test_only_phases_that_compute_are_counted(tmp_path: Path) -> None:
    """Samples that the loader stacks are no work of the model."""
    trace = trace_of(tmp_path, [step(1, 0, 200), *LAYER, shaped("aten::add", 150, 9, (32, 128))])
    begin = int(trace.ts_ns.min())
    spans = [("forward", begin, begin + 100_000), ("data_wait", begin + 100_000, begin + 200_000)]
    work = device_evidence(trace, spans).get(Work)
    assert work is not None
    assert [x.name for x in work.ops] == ["aten::addmm"]
    assert work.calls == 1


def test_without_shapes_there_is_a_reason(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path, [step(1, 0, 200), op("aten::mm", 10, 20)])
    assert evidence.get(Work) is None
    assert "record_shapes" in evidence.missing[Work]


def test_an_op_in_backward_has_the_place_of_the_forward_op_that_made_it(tmp_path: Path) -> None:
    number = {"Sequence number": 7}
    made = shaped("aten::mm", 12, 20, (32, 64), (64, 128))
    made["args"] |= number | {"Fwd thread id": 0}
    node = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        step(1, 0, 200),
        span("python_function", "train.py(3): train", 1, 190),
        span("python_function", "model.py(9): forward", 10, 30),
        made,
        op(node, 100, 50, **number, **{"Fwd thread id": 1}),
        shaped("aten::mm", 110, 30, (64, 32), (32, 128)),
        shaped("aten::add", 160, 9, (32, 128)),
    ]
    work = evidence_of(tmp_path, events).get(Work)
    assert work is not None
    found = {(x.name, x.dims[0][0]): (x.backward, x.at and x.at.function) for x in work.ops}
    assert found == {
        ("aten::mm", 32): (False, "forward"),
        ("aten::mm", 64): (True, "forward"),
        ("aten::add", 32): (False, "train"),
    }


def test_calls_of_one_function_are_one_op_of_its_work(tmp_path: Path) -> None:
    """A stall of a call that was an op of its own would pass for work that takes this long."""
    events = [step(1, 0, 500)]
    for begin in (10, 60, 110):
        events += [
            span("python_function", "model.py(9): forward", begin, 30),
            shaped("aten::tanh", begin + 2, 20, (32,)),
        ]
    work = evidence_of(tmp_path, events).get(Work)
    assert work is not None
    assert [(x.name, x.count, x.host_ns) for x in work.ops] == [("aten::tanh", 3, 60_000)]


def test_what_an_op_does_itself_between_others_is_its_own_work(tmp_path: Path) -> None:
    """A decomposition copies its input, and works for milliseconds; a wrapper does not."""
    events = [
        step(1, 0, 6000),
        shaped("aten::linalg_svdvals", 10, 3400, (128, 256)),
        shaped("aten::_linalg_svd", 12, 3390, (128, 256)),
        shaped("aten::copy_", 20, 100, (128, 256), (128, 256)),
        shaped("aten::softmax", 4000, 500, (64, 64)),
        shaped("aten::_softmax", 4005, 490, (64, 64)),
    ]
    work = evidence_of(tmp_path, events).get(Work)
    assert work is not None
    assert {x.name: x.host_ns for x in work.ops} == {
        "aten::_linalg_svd": 3_290_000,
        "aten::copy_": 100_000,
        "aten::_softmax": 490_000,
    }


def test_a_wrapper_that_was_interrupted_once_does_no_work_itself(tmp_path: Path) -> None:
    events = [step(1, 0, 6000)]
    for begin, stall in ((100, 0), (200, 0), (300, 3000)):
        events.append(shaped("aten::relu", begin, 20 + stall, (64, 64)))
        events.append(shaped("aten::clamp_min", begin + 1, 15, (64, 64)))
    work = evidence_of(tmp_path, events).get(Work)
    assert work is not None
    assert [(x.name, x.host_ns) for x in work.ops] == [("aten::clamp_min", 45_000)]


def test_with_a_device_the_time_on_the_host_is_no_work(tmp_path: Path) -> None:
    events = [
        step(1, 0, 6000),
        shaped("aten::_linalg_svd", 12, 3390, (128, 256)),
        shaped("aten::copy_", 20, 100, (128, 256), (128, 256)),
        *launched("svd", 30, 35, 60, 7),
    ]
    work = evidence_of(tmp_path, events).get(Work)
    assert work is not None and [x.name for x in work.ops] == ["aten::copy_"]
