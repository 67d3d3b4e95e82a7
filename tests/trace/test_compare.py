"""Two traces side by side: what differs is listed, largest first, and what is missing is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.diagnose import diagnose
from tdiag.diagnose.trace_differences import TracedRun, compare
from tdiag.evidence.device import DevicePart, DeviceParts
from tdiag.evidence.from_trace.device_work import TOP
from tdiag.model.comparison import ChangeTable, Comparison
from tests.trace.making import Event, call, copy, evidence_of, kernel, launched, op, step

US = 1000
STEPS = 4
KERNELS = "Kernels and copies"


def side(
    tmp_path: Path, kernels: dict[str, float], *more: Event, ops: int = 10, once: int = 0
) -> TracedRun:
    """Four steps of 1 ms, each with so many ops and, one after another, kernels of so many µs;
    ``more``: events of every step, at their time in it; ``once``: kernels in the last step only."""
    events = [kernel("a", 3900 + 20 * i, 10) for i in range(once)]
    for number in range(STEPS):
        at = number * 1000
        events.append(step(number, at, 1000))
        events += [op("aten::mm", at + 20 * i, 20) for i in range(ops)]
        busy = at + 10.0
        for index, (name, dur) in enumerate(kernels.items()):
            events += launched(name, at + 10 + 6 * index, busy, dur, number * 100 + index + 1)
            busy += dur
        events += [{**event, "ts": event["ts"] + at} for event in more]
    evidence = evidence_of(tmp_path, events)
    return TracedRun(diagnose(evidence), evidence)


def table(found: Comparison, title: str) -> ChangeTable:
    return next(x for x in found.tables if x.title == title)


def times(found: Comparison, title: str) -> list[tuple[str, float, float]]:
    return [(x.name, x.before / US, x.after / US) for x in table(found, title).rows]


def counts(found: Comparison) -> list[tuple[str, float, float]]:
    return [(x.name, x.before, x.after) for x in table(found, "Counts").rows]


def test_kernels_by_name_and_by_family(tmp_path: Path) -> None:
    before = side(tmp_path, {"sgemm": 500, "vectorized_relu": 100, "layer_norm": 50})
    after = side(tmp_path, {"sgemm": 280, "triton_poi_fused": 150, "layer_norm": 50})
    found = compare(before, after)
    assert times(found, KERNELS) == [
        ("sgemm", 500, 280), ("triton_poi_fused", 0, 150), ("vectorized_relu", 100, 0),
    ]  # fmt: skip
    assert times(found, "Kernel families") == [("gemm", 500, 280), ("elementwise", 100, 150)]
    assert times(found, "Ops by device time") == [("aten::mm", 650, 480)]
    assert ("compute", 650, 480) in times(found, "Budget")


def test_what_hardly_differs_is_left_out(tmp_path: Path) -> None:
    """sgemm by 1%, which two runs of one program differ by; tiny by 0.3% of the step."""
    before = side(tmp_path, {"sgemm": 500, "tiny": 1})
    after = side(tmp_path, {"sgemm": 505, "tiny": 4})
    found = compare(before, after)
    assert times(found, KERNELS) == []
    assert table(found, KERNELS).why == ""
    assert counts(found) == []


def test_counts_by_the_largest_factor(tmp_path: Path) -> None:
    sent = "Memcpy HtoD (Pinned -> Device)"
    small, large = (copy(sent, 900, 5, size=n) for n in (100_000, 300_000))
    waiting = [call("cudaStreamSynchronize", 920 + 10 * i, 5) for i in range(2)]
    allocating = call("cudaMalloc", 890, 5)
    back = copy("Memcpy DtoH (Device -> Pageable)", 950, 5, size=4)
    before = side(tmp_path, {"a": 10}, small, back)
    after = side(tmp_path, {"a": 10, "b": 10}, large, *waiting, allocating, ops=15)
    assert counts(compare(before, after)) == [
        ("synchronisations", 0, 2), ("cudaMalloc, cudaFree and the like", 0, 1),
        ("copies device to host", 1, 0),
        ("bytes host to device", 100_000, 300_000), ("kernels", 1, 2),
        ("host ops, nested ones too", 10, 15), ("host ops called from outside", 10, 15),
    ]  # fmt: skip


def test_one_event_at_the_edge_of_the_steps_is_no_change(tmp_path: Path) -> None:
    before = side(tmp_path, {"a": 10})
    assert counts(compare(before, side(tmp_path, {"a": 10}, once=1))) == []
    assert counts(compare(before, side(tmp_path, {"a": 10}, once=2))) == [("kernels", 1, 1.5)]


def test_what_one_side_lacks_is_said_and_not_counted_as_nothing(tmp_path: Path) -> None:
    with_device, host_only = side(tmp_path, {"a": 100}), side(tmp_path, {}, ops=20)
    why = "now: no device activity was captured in the trace"
    found = compare(with_device, host_only)
    assert {x.title for x in found.tables if x.why == why} == {
        "Budget", "Kernel families", KERNELS, "Ops by device time", "Counts of the device",
    }  # fmt: skip
    assert all(not x.rows for x in found.tables if x.why)
    assert times(found, "Ops by own host time") == [("aten::mm", 200, 400)]
    assert [name for name, _, _ in counts(found)] == [
        "host ops, nested ones too", "host ops called from outside",
    ]  # fmt: skip
    both = compare(host_only, host_only)
    assert table(both, "Budget").why.startswith("in neither trace: no device activity")


def test_what_a_cut_list_lacks_may_be_there(tmp_path: Path) -> None:
    """A full list ends at its last entry, here 20 µs: what is not in it may take as much."""
    before, after = side(tmp_path, {"a": 300}), side(tmp_path, {"a": 300})
    names = ["a", *(f"k{i}" for i in range(TOP - 1))]
    full = tuple(DevicePart(name=name, count=1, device_ns=20.0 * US) for name in names)
    short = tuple(DevicePart(name=name, count=1, device_ns=ns) for name, ns in
                  (("a", 20.0 * US), ("gone", 90.0 * US), ("small", 22.0 * US)))  # fmt: skip
    for one, kernels in ((before, short), (after, full)):
        one.evidence.add(DeviceParts(kernels=kernels, ops=(), modules=(), functions=()))
    rows = table(compare(before, after), KERNELS).rows
    assert (rows[0].name, rows[0].at_most) == ("gone", "after")
    assert rows[0].difference == pytest.approx(-70 * US)
    assert "small" not in {row.name for row in rows}
    assert {row.at_most for row in rows[1:]} == {""}, "the short list is whole: these are new"
