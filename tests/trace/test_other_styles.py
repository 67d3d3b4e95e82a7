"""Traces that the corpus has none of: Intel's devices, unknown ones, several processes, pauses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tdiag.evidence.device import DeviceTime, Syncs, Transfers
from tdiag.evidence.steps import TracedSteps
from tdiag.evidence.store import Evidence
from tests.trace.making import Event, evidence_of, kernel, op, span, step

US = 1000


def components(evidence: Evidence) -> dict[str, float]:
    found = evidence.get(DeviceTime)
    assert found is not None
    return {name: ns / US for name, ns in found.components_ns.items()}


def work(cat: str, name: str, ts: float, dur: float, number: int, **rest: Any) -> Event:
    args = {"pid": 0, "tid": 64, "correlation": number, "device": 0, "stream": 64}
    return span(cat, name, ts, dur, **{**args, **rest})


def level_zero(pid: int = 100, device: int = 0, shift: float = 0) -> list[Event]:
    """Four steps of 2 ms: ten products, then a copy from memory that nobody allocated for it. Each
    call is recorded twice, by the runtime and, inside it, by the driver."""
    events = []
    for number in range(4):
        at = number * 2000 + shift
        events.append(span("user_annotation", f"ProfilerStep#{number}", at, 2000, pid=pid, tid=pid))
        host = {"pid": pid, "tid": pid}
        for i in range(10):
            ts, c = at + 100 * i, 100 * number + i + 1
            events += [
                span("cpu_op", "aten::mm", ts, 60, **host),
                span("xpu_runtime", "urEnqueueKernelLaunch", ts + 10, 30, correlation=c, **host),
                span("xpu_driver", "zeCommandListAppendLaunchKernel", ts + 15, 20, correlation=c,
                     **host),
                work("kernel", "gemm_kernel", ts + 60, 80, c, device=device),
            ]  # fmt: skip
        c = 100 * number + 50
        events += [
            span("xpu_runtime", "urEnqueueUSMMemcpy", at + 1100, 40, correlation=c, **host),
            work("gpu_memcpy", "zeCommandListAppendMemoryCopy(M2D)", at + 1150, 500, c,
                 device=device, bytes=1 << 20),
            span("xpu_driver", "zeEventHostSynchronize", at + 1150, 510, correlation=c + 1, **host),
            span("xpu_sync", "zeEventHostSynchronize", at + 1150, 510, correlation=c + 1, **host),
        ]  # fmt: skip
    return events


def test_intels_copies_have_a_direction_and_a_kind_of_memory(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path, level_zero())
    assert components(evidence)["h2d"] == 500
    assert components(evidence)["compute"] == 800
    copies = evidence.get(Transfers)
    assert copies is not None
    assert [(x.direction, x.memory, x.count) for x in copies.copies] == [("h2d", "pageable", 1)]
    waits = evidence.get(Syncs)
    assert waits is not None
    assert [(x.name, x.count) for x in waits.syncs] == [("zeEventHostSynchronize", 1)]


@pytest.mark.parametrize(
    ("name", "direction", "memory"),
    [
        ("zeCommandListAppendMemoryCopy(H2D)", "h2d", "pinned"),
        ("zeCommandListAppendMemoryCopy(D2M)", "d2h", "pageable"),
        ("zeCommandListAppendMemoryCopy(D2H)", "d2h", "pinned"),
        ("Memcpy H2D", "h2d", "unknown"),
    ],
)
def test_directions(tmp_path: Path, name: str, direction: str, memory: str) -> None:
    events = [step(1, 0, 1000), work("gpu_memcpy", name, 100, 300, 1)]
    found = evidence_of(tmp_path, events).get(Transfers)
    assert found is not None
    assert [(x.direction, x.memory) for x in found.copies] == [(direction, memory)]


def test_a_copy_within_the_device_is_compute(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000),
        work("gpu_memcpy", "zeCommandListAppendMemoryCopy(D2D)", 100, 300, 1),
    ]
    assert components(evidence_of(tmp_path, events))["compute"] == 300


def test_the_work_of_an_unknown_device_needs_no_stream(tmp_path: Path) -> None:
    events = [step(1, 0, 1000), op("aten::mm", 10, 20)]
    events.append(span("Npu_Kernel", "MatMulV2", 100, 300, pid="Ascend", tid="Stream 5"))
    assert components(evidence_of(tmp_path, events))["compute"] == 300


@pytest.mark.parametrize("shift", [137, -137])
def test_of_several_processes_one_is_analysed(tmp_path: Path, shift: float) -> None:
    """Their correlation ids are the same numbers; each has a device of its own."""
    alone = components(evidence_of(tmp_path, level_zero()))
    both = [*level_zero(), op("aten::add", 1099, 1), *level_zero(200, 1, shift)]
    found = evidence_of(tmp_path, both)
    assert components(found) == pytest.approx(alone, abs=2)
    told = [note.text for note in found.notes if "processes" in note.text]
    assert told == [
        "the trace holds 2 processes (100, 200): tdiag analyses 100, which has the most ops"
    ]


def test_steps_marked_on_two_threads_count_once(tmp_path: Path) -> None:
    again = [{**step(i, 1000 * i + 3, 990), "tid": 7} for i in range(4)]
    events = [*(step(i, 1000 * i, 1000) for i in range(4)), *again, kernel("k", 100, 3500)]
    found = evidence_of(tmp_path, events).get(TracedSteps)
    assert found is not None
    assert found.durations_ns == (1000 * US,) * 4


def test_a_pause_between_recordings_is_no_step(tmp_path: Path) -> None:
    """Of a schedule that repeats, the longest recording counts."""
    first = [step(i, 1000 * i, 1000) for i in range(4)]
    second = [step(i, 5_000_000 + 1000 * i, 1000) for i in range(2)]
    events = [*first, *second, kernel("k", 100, 3500), kernel("k", 5_000_100, 1500)]
    found = evidence_of(tmp_path, events)
    steps = found.get(TracedSteps)
    assert steps is not None
    assert steps.durations_ns == (1000 * US,) * 4
    assert components(found) == {"compute": 875, "other": 125}
