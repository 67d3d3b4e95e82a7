"""Small traces as Kineto writes them: lists of event dicts, times in microseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tdiag.evidence.from_trace import device_evidence
from tdiag.evidence.store import Evidence
from tdiag.trace import Trace, read_trace

Event = dict[str, Any]
HOST, AUTOGRAD = 100, 101  # thread ids


def span(cat: str, name: str, ts: float, dur: float, **rest: Any) -> Event:
    place = {key: rest.pop(key) for key in ("pid", "tid") if key in rest}
    return {
        "ph": "X", "cat": cat, "name": name, "pid": HOST, "tid": HOST, "ts": ts, "dur": dur,
        **place, "args": rest,
    }  # fmt: skip


def op(name: str, ts: float, dur: float, **rest: Any) -> Event:
    return span("cpu_op", name, ts, dur, **rest)


def note(name: str, ts: float, dur: float) -> Event:
    return span("user_annotation", name, ts, dur)


def step(number: int, ts: float, dur: float) -> Event:
    return note(f"ProfilerStep#{number}", ts, dur)


def call(name: str, ts: float, dur: float, correlation: int = 0) -> Event:
    return span("cuda_runtime", name, ts, dur, correlation=correlation)


def kernel(name: str, ts: float, dur: float, correlation: int = 0, stream: int = 7) -> Event:
    return span(
        "kernel", name, ts, dur, pid=0, tid=stream, device=0, stream=stream,
        correlation=correlation,
    )  # fmt: skip


def copy(name: str, ts: float, dur: float, correlation: int = 0, size: int = 1000) -> Event:
    return span(
        "gpu_memcpy", name, ts, dur, pid=0, tid=7, device=0, stream=7, correlation=correlation,
        bytes=size,
    )  # fmt: skip


def launched(name: str, call_ts: float, ts: float, dur: float, correlation: int) -> list[Event]:
    """A kernel and the 5 µs call that launched it."""
    return [call("cudaLaunchKernel", call_ts, 5, correlation), kernel(name, ts, dur, correlation)]


def write(path: Path, events: list[Event], **metadata: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, **metadata, "traceEvents": events}))
    return path


def trace_of(tmp_path: Path, events: list[Event], **metadata: Any) -> Trace:
    return read_trace(write(tmp_path / "trace.json", events, **metadata))


def evidence_of(tmp_path: Path, events: list[Event], **metadata: Any) -> Evidence:
    return device_evidence(trace_of(tmp_path, events, **metadata))
