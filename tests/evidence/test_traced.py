"""The run's own trace is read with the phases that the probe knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.from_run import load_run
from tdiag.evidence.steps import StepEvents, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import HostOps
from tdiag.model.timeline import Timeline

from .making import MS, TRAIN, Run, loader, plain

TRACE_BEGAN_US = 7_000_000.0  # on the trace's own clock


def event(cat: str, name: str, ms: float, dur_ms: float, **args: Any) -> dict[str, Any]:
    place = {"pid": 0, "tid": 7} if cat == "kernel" else {"pid": 100, "tid": 100}
    return {
        "ph": "X", "cat": cat, "name": name, "ts": TRACE_BEGAN_US + ms * 1000,
        "dur": dur_ms * 1000, "args": args, **place,
    }  # fmt: skip


def traced_run(
    folder: Path,
    *events: dict[str, Any],
    file: str = "tensorboard/a.json",
    workers: tuple[int, ...] = (),
    **more: Any,
) -> Evidence:
    """Thirty clean steps, then two traced ones of 30 ms each. ``workers``: pids; ``more``: of the
    record of the trace."""
    run = Run(folder)
    if workers:
        loader(run, TRAIN, num_workers=len(workers))
        run.add("iterator", t=run.now, loader=TRAIN, pids=workers)
    run.steps(30, plain)
    run.pause(400)
    run.open("trace", 2)
    began = run.now
    for _ in range(2):
        plain(run)
        run.end()
    run.add("trace", file="tensorboard/a.json", steps=2, events=9, t=began, **{"pass": 2}, **more)
    run.add("trace", file="tensorboard/old.json", steps=1, events=9, t=5, **{"pass": 1})
    spans = [event("user_annotation", f"ProfilerStep#{i}", 30 * i, 30) for i in range(2)]
    (folder / "tensorboard").mkdir()
    (folder / file).write_text(json.dumps({"traceEvents": [*spans, *events]}))
    return load_run(run.write())


def test_device_idle_in_the_loss_is_known_from_the_marks(tmp_path: Path) -> None:
    """Of each step 1 to 5 ms are data wait, 13 to 16 loss: the device works outside of both."""
    events = []
    for number, (at, dur) in enumerate(((5, 8), (16, 15), (35, 8), (46, 14))):
        events += [
            event("cpu_op", "aten::mm", at, 0.2),
            event("cuda_runtime", "cudaLaunchKernel", at, 0.1, correlation=number + 1),
            event("kernel", "gemm", at, dur, device=0, stream=7, correlation=number + 1),
        ]
    found = traced_run(tmp_path, *events).get(DeviceTime)
    assert found is not None
    assert found.components_ns == {
        "compute": pytest.approx(22.5 * MS),
        "python_loss": pytest.approx(3 * MS),
        "data_wait": pytest.approx(4 * MS),
        "other": pytest.approx(0.5 * MS),
    }


def test_backward_is_shared_out_by_the_phase_that_issued_the_forward_op(tmp_path: Path) -> None:
    node = "autograd::engine::evaluate_function: MulBackward0"
    sequence = {"Sequence number": 5, "Fwd thread id": 0}
    ops = [
        event("cpu_op", "aten::mul", 14, 1, **sequence),  # in the loss
        event("cpu_op", node, 18, 6, **{"Sequence number": 5, "Fwd thread id": 1}),
    ]
    found = traced_run(tmp_path, *ops).get(HostOps)
    assert found is not None
    assert found.backward_of == {"loss": pytest.approx(3 * MS)}


def test_clean_steps_are_not_replaced_by_traced_ones(tmp_path: Path) -> None:
    evidence = traced_run(tmp_path, event("cpu_op", "aten::mul", 14, 1))
    traced = evidence.get(TracedSteps)
    assert traced is not None
    assert traced.count == 2
    assert str(evidence.capture["trace"]) == "captured"


@pytest.mark.parametrize("on_device", [True, False])
def test_a_fault_of_the_profiler_is_a_reason_only_where_there_is_a_device(
    tmp_path: Path, on_device: bool
) -> None:
    """Torch's CUDA build complains of the missing driver wherever it traces on a CPU."""
    fault = "ERROR: gpuGetDeviceCount failed with code 35"
    op = event("cpu_op", "aten::mul", 14, 1)
    evidence = traced_run(tmp_path, op, faults=[fault], device=on_device)
    assert (fault in evidence.missing.get(DeviceTime, "")) is on_device


def test_a_trace_that_is_gone_is_said(tmp_path: Path) -> None:
    evidence = traced_run(tmp_path, file="tensorboard/other.json")
    assert evidence.get(HostOps) is None
    assert evidence.missing[HostOps].startswith("no trace was recorded")


def test_a_trace_that_is_none_is_a_note(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(30, plain)
    run.add("trace", file="a.json", steps=2, events=9, t=5)
    (tmp_path / "a.json").write_text("hello")
    evidence = load_run(run.write())
    assert any(note.text.startswith("a trace could not be read: ") for note in evidence.notes)
    assert evidence.get(TracedSteps) is None


def drawn(evidence: Evidence) -> dict[str, list[tuple[float, float, str]]]:
    found = evidence.get(Timeline)
    assert found is not None
    return {
        found.source + " " + lane.name: [
            (x.begin_ns / MS, x.end_ns / MS, x.kind) for x in lane.spans
        ]
        for lane in found.lanes
    }


def test_without_a_device_the_clean_step_of_median_length_is_drawn(tmp_path: Path) -> None:
    def uneven(run: Run, number: int) -> None:
        plain(run)
        if number == 3:
            run.pair(10, 5)  # a collection

    steps = Run(tmp_path).steps(30, uneven)
    assert drawn(load_run(steps.write())) == {
        "baseline host": [
            (0, 1, "other"),
            (1, 5, "data_wait"),
            (5, 7, "prepare"),
            (7, 13, "forward"),
            (13, 16, "loss"),
            (16, 26, "backward"),
            (26, 30, "optimizer"),
        ]
    }


def test_a_device_is_drawn_as_it_was_traced(tmp_path: Path) -> None:
    work = event("kernel", "gemm", 5, 8, device=0, stream=7)
    assert drawn(traced_run(tmp_path, work)) == {
        "trace host": [(1, 5, "data_wait"), (13, 16, "python_loss")],
        "trace compute": [(5, 13, "compute")],
    }


def test_a_trace_without_a_device_does_not_replace_the_clean_step(tmp_path: Path) -> None:
    found = drawn(traced_run(tmp_path, event("cpu_op", "aten::mm", 14, 1)))
    assert set(found) == {"baseline host"}


def test_workers_are_shown_at_the_time_they_fetched(tmp_path: Path) -> None:
    """Their clock is the events', the trace has its own."""
    worker = Run(tmp_path, pid=101)
    worker.lines = worker.lines[:1]
    worker.add("role", role="worker", tid=101, worker=0, loader=TRAIN)
    began_ms = 1000 + 30 * 30 + 400  # of the first traced step
    worker.add("fetch", loader=TRAIN, worker=0, t=began_ms * MS + 4 * MS, wall=9 * MS, load=6 * MS)
    worker.write()
    found = traced_run(tmp_path, event("cpu_op", "aten::mm", 1, 20), workers=(101,)).get(StepEvents)
    assert found is not None and found.number == 1
    lane = next(lane for lane in found.lanes if lane.role == "worker")
    assert (lane.name, lane.partial) == ("worker 0", True)
    assert [(e.name, e.begin_ns, e.end_ns) for e in lane.events] == [
        ("load samples", 4 * MS, 10 * MS),
        ("collate", 10 * MS, 13 * MS),
    ]
