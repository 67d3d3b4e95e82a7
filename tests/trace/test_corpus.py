"""Real traces of real machines: exact against a plain ``json.load``, and facts as labelled.

They lie outside the repository: ``TDIAG_TRACE_CORPUS`` names their folder.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest

from tdiag.evidence.device import DeviceTime, Kernels, Syncs, Transfers
from tdiag.evidence.from_trace import device_evidence
from tdiag.evidence.ranks import Communication
from tdiag.evidence.steps import TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import HostOps
from tdiag.model.kind import Kind
from tdiag.trace import Trace, read_trace

CORPUS = Path(os.environ.get("TDIAG_TRACE_CORPUS") or "/nonexistent")
TRACES = sorted(path for path in CORPUS.rglob("*.gz"))
LABELS = CORPUS / "labels.json"
pytestmark = pytest.mark.skipif(not TRACES, reason="TDIAG_TRACE_CORPUS names no folder of traces")

MS = 1e6
TOLERANCE = 0.05  # as labels.json states


def trace_id(path: Path) -> str:
    return str(path.relative_to(CORPUS))


@pytest.fixture(scope="module", params=TRACES, ids=trace_id)
def path(request: pytest.FixtureRequest) -> Path:
    """All tests of a trace follow one another: it is read once."""
    found: Path = request.param
    return found


@lru_cache(maxsize=1)
def trace_of(path: Path) -> Trace:
    return read_trace(path)


def test_counts_totals_and_times_are_exact(path: Path) -> None:
    plain = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    events = plain if isinstance(plain, list) else plain["traceEvents"]
    about = {} if isinstance(plain, list) else plain
    trace = trace_of(path)
    assert trace.counts == Counter((e.get("ph", ""), e.get("cat", "")) for e in events)
    spans = [e for e in events if e["ph"] == "X"]
    base = about.get("baseTimeNanoseconds", 0)
    assert trace.ts_ns.tolist() == [round(e["ts"] * 1000) + base for e in spans]
    assert trace.dur_ns.tolist() == [round(e["dur"] * 1000) for e in spans]
    assert [trace.names[i] for i in trace.name] == [e["name"][:1000] for e in spans]
    assert [trace.categories[i] for i in trace.category] == [e.get("cat", "") for e in spans]
    assert trace.device_properties == (
        about.get("deviceProperties") or about.get("computeProperties") or []
    )
    assert not trace.damage


@cache
def evidence(name: str) -> Evidence:
    return device_evidence(trace_of(CORPUS / name))


def test_every_budget_adds_up(path: Path) -> None:
    found = evidence(trace_id(path))
    steps, device = found.get(TracedSteps), found.get(DeviceTime)
    assert steps is not None
    assert sum(steps.durations_ns) == pytest.approx(steps.mean_ns * steps.count, abs=steps.count)
    if device is None:
        assert found.missing[DeviceTime] == "no device activity was captured in the trace"
        return
    assert sum(device.components_ns.values()) == pytest.approx(device.step_ns, abs=1e-3)
    assert all(ns > 0 for ns in device.components_ns.values())
    busy = sum(device.components_ns.get(k, 0.0) for k in ("compute", "comm", "h2d", "d2h"))
    assert busy == pytest.approx(device.busy_frac * device.step_ns)


def need(found: Evidence, kind: type[Any]) -> Any:
    fact: Kind | None = found.get(kind)
    assert fact is not None, found.missing
    return fact


def _total(found: Evidence, ns_per_step: float) -> float:
    """ms over the whole trace."""
    return ns_per_step * need(found, TracedSteps).count / MS


def _sync(found: Evidence, name: str, field: str) -> float:
    every = [getattr(s, field) for s in need(found, Syncs).syncs if s.name == name]
    return sum(every) * need(found, TracedSteps).count


def _copies(found: Evidence, direction: str, memory: str, field: str) -> float:
    every = need(found, Transfers).copies
    mine = [getattr(c, field) for c in every if (c.direction, c.memory) == (direction, memory)]
    return _total(found, sum(mine))


FACTS: dict[str, Callable[[Evidence], float]] = {
    "dataloader_ms": lambda e: _total(e, need(e, DeviceTime).host_ns["data_wait"]),
    "steps_ms": lambda e: sum(need(e, TracedSteps).durations_ns) / MS,
    "device_busy_frac": lambda e: need(e, DeviceTime).busy_frac,
    "stream_synchronize": lambda e: _sync(e, "cudaStreamSynchronize", "count"),
    "stream_synchronize_ms": lambda e: _sync(e, "cudaStreamSynchronize", "host_ns") / MS,
    "item": lambda e: _sync(e, "aten::item", "count"),
    "dtoh_blocked_ms": lambda e: _copies(e, "d2h", "pageable", "host_blocked_ns"),
    "htod_pageable_ms": lambda e: _copies(e, "h2d", "pageable", "device_ns"),
    "dtoh_pageable_ms": lambda e: _copies(e, "d2h", "pageable", "device_ns"),
    "nccl_ms": lambda e: _total(e, need(e, Communication).total_ns),
    "nccl_exposed_ms": lambda e: _total(e, need(e, Communication).exposed_ns),
    "kernels": lambda e: need(e, Kernels).count * need(e, TracedSteps).count,
}


# Labelled roughly, or by another definition of the steps.
NOT_COMPARED = {
    ("sampled_128rank.json.gz", "nccl_exposed_ms"),  # a round figure; the kernels give 337
    ("gpu_user_annotation.json.gz", "device_busy_frac"),  # labelled over the span, start included
}


def labelled() -> list[tuple[str, str, float]]:
    labels = json.loads(LABELS.read_text()) if LABELS.is_file() else {}
    return [
        (name, fact, value)
        for name, label in labels.items()
        if (CORPUS / name).is_file()
        for fact, value in label.get("facts", {}).items()
        if (name, fact) not in NOT_COMPARED
    ]


@pytest.mark.parametrize(("name", "fact", "value"), labelled())
def test_facts_as_labelled(name: str, fact: str, value: float) -> None:
    # Labels are rounded to two digits or whole milliseconds: half of the last digit on top.
    digit = 0.005 if value < 1 else 0.5
    assert FACTS[fact](evidence(name)) == pytest.approx(value, rel=TOLERANCE, abs=digit)


def test_nothing_captured_is_told_from_an_idle_device() -> None:
    for name in ("zero_kernels", "cupti_ranges_only", "no_rank", "host_only_on_gpu_machine"):
        found = evidence(f"{name}.json.gz")
        assert found.get(DeviceTime) is None
        assert found.get(HostOps) is not None
