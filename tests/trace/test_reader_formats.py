"""Every way in which exporters have written the same trace reads the same."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tdiag.trace import Trace, inflate, read_trace
from tests.trace.making import HOST, kernel, op, span, step, trace_of, write

EVENTS = [
    {"ph": "M", "name": "process_name", "pid": HOST, "tid": 0, "ts": 0, "args": {"name": "python"}},
    step(1, 1000, 500),
    op("aten::mm", 1010, 20, **{"External id": 3, "Sequence number": 7, "Fwd thread id": 1}),
    span("cuda_runtime", "cudaLaunchKernel", 1012, 4, correlation=9, **{"External id": 3}),
    kernel("gemm", 1020, 30.5, correlation=9),
    {"ph": "s", "id": 9, "pid": HOST, "tid": HOST, "ts": 1012, "cat": "ac2g", "name": "ac2g"},
]


def compact(events: list) -> str:
    return json.dumps({"traceEvents": events, "traceName": "x"}, separators=(",", ":"))


def indented(events: list) -> str:
    return json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=2)


def kineto(events: list) -> str:
    body = ",\n".join("  " + json.dumps(event, indent=4) for event in events)
    return '\n{\n  "schemaVersion": 1,\n  "traceEvents": [\n' + body + '\n  ],\n"traceName": "x"}\n'


def metadata_around(events: list) -> str:
    devices = [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}]
    return json.dumps({
        "metadata": {"nested": [{"a": 1}, {"b": 2}]},
        "traceEvents": events,
        "deviceProperties": devices,
    })  # fmt: skip


def bare_list(events: list) -> str:
    return json.dumps(events)


def byte_order_mark(events: list) -> str:
    return "\ufeff" + compact(events)


STYLES = [compact, indented, kineto, metadata_around, bare_list, byte_order_mark]


def assert_same(a: Trace, b: Trace) -> None:
    for column in ("ts_ns", "dur_ns", "external", "correlation", "sequence", "stream", "device"):
        np.testing.assert_array_equal(getattr(a, column), getattr(b, column), column)
    assert [a.names[i] for i in a.name] == [b.names[i] for i in b.name]
    assert [a.lanes[i] for i in a.lane] == [b.lanes[i] for i in b.lane]
    assert a.counts == b.counts


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("packed", [False, True])
def test_every_json_style_gives_the_same_columns(
    tmp_path: Path, style: Callable[[list], str], packed: bool
) -> None:
    data = style(EVENTS).encode()
    path = tmp_path / "any-name"
    path.write_bytes(gzip.compress(data) if packed else data)
    trace = read_trace(path)
    assert_same(trace, trace_of(tmp_path, EVENTS))
    assert not trace.damage
    assert trace.counts["X", "kernel"] == 1
    assert trace.counts["M", ""] == 1


def test_columns_hold_what_the_arguments_say(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, EVENTS)
    assert [trace.names[i] for i in trace.name] == [
        "ProfilerStep#1", "aten::mm", "cudaLaunchKernel", "gemm",
    ]  # fmt: skip
    assert trace.ts_ns.tolist() == [1_000_000, 1_010_000, 1_012_000, 1_020_000]
    assert trace.dur_ns.tolist() == [500_000, 20_000, 4_000, 30_500]
    assert trace.external.tolist() == [-1, 3, 3, -1]
    assert trace.correlation.tolist() == [-1, -1, 9, 9]
    assert trace.sequence.tolist() == [-1, 7, -1, -1]
    assert trace.forward_thread.tolist() == [-1, 1, -1, -1]
    assert trace.stream.tolist() == [-1, -1, -1, 7]
    assert trace.device.tolist() == [-1, -1, -1, 0]


def test_metadata_after_the_events_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(metadata_around(EVENTS))
    assert [d["name"] for d in read_trace(path).device_properties] == ["A", "B"]


@pytest.mark.parametrize(
    ("text", "base", "expected_ns"),
    [
        ("1623142623461655", None, 1623142623461655000),  # old: integer epoch microseconds
        ("1712195495519870.234", None, 1712195495519870234),  # beyond float64's microseconds
        ("1419116104994.671", 1751410836000000000, 1752829952104994671),
        ("12.5", None, 12500),
    ],
)
def test_times_are_exact_to_the_nanosecond(
    tmp_path: Path, text: str, base: int | None, expected_ns: int
) -> None:
    event = json.dumps(op("aten::mm", 0, 1.001)).replace('"ts": 0', f'"ts": {text}')
    about = "" if base is None else f', "baseTimeNanoseconds": {base}'
    path = tmp_path / "t.json"
    for unit in ("ms", "ns"):
        path.write_text(f'{{"traceEvents": [{event}], "displayTimeUnit": "{unit}"{about}}}')
        trace = read_trace(path)
        assert trace.ts_ns.tolist() == [expected_ns]
        assert trace.dur_ns.tolist() == [1001]


def test_old_spellings(tmp_path: Path) -> None:
    event = span("Kernel", "k", 5, 1, pid=0, tid="stream 7", stream=7, device=0, correlation=4)
    event["args"]["external id"] = 588
    trace = trace_of(tmp_path, [event])
    assert trace.external.tolist() == [588]
    assert trace.lanes == [(0, "stream 7")]


def test_numbers_written_as_text_or_not_at_all(tmp_path: Path) -> None:
    event = span("gpu_memcpy", "Memcpy", 5, 1, stream="0x7f", device="2", bytes="128")
    event["args"]["correlation"] = None
    event["pid"] = None
    trace = trace_of(tmp_path, [event])
    assert (trace.stream[0], trace.device[0], trace.bytes[0], trace.correlation[0]) == (
        -1, 2, 128, -1,
    )  # fmt: skip


def test_huge_identifiers_do_not_stop_the_reader(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [op("a", 1, 1, **{"External id": 2**64 - 1}), op("b", 2, 1)])
    assert trace.external.tolist() == [-1, -1]
    assert len(trace) == 2


def test_identifiers_that_need_64_bits_come_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {50: 2**40, 90: 2**31}
    events = [op("a", i, 1, **{"External id": wide.get(i, i)}) for i in range(100)]
    monkeypatch.setattr(inflate, "BLOCK_BYTES", 500)
    assert trace_of(tmp_path, events).external.tolist() == [wide.get(i, i) for i in range(100)]


def test_events_across_block_borders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [op(f"op{i}", i, 1, shapes=[{"x": 1}, {"y": [2]}]) for i in range(400)]
    whole = trace_of(tmp_path, events)
    for size in (64, 333, 4096):
        monkeypatch.setattr(inflate, "BLOCK_BYTES", size)
        parts = trace_of(tmp_path, events)
        assert_same(parts, whole)
        assert not parts.damage


def test_several_gzip_members_are_one_file(tmp_path: Path) -> None:
    data = compact(EVENTS).encode()
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(data[:200]) + gzip.compress(data[200:]))
    assert_same(read_trace(path), trace_of(tmp_path, EVENTS))


def test_zlib_reads_what_isal_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zlib

    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(kineto(EVENTS * 50).encode()))
    fast = read_trace(path)
    monkeypatch.setattr(inflate, "fast_zlib", zlib)
    assert_same(read_trace(path), fast)


@pytest.mark.parametrize("odd", ["?", None])
def test_phases_that_nobody_has_heard_of(odd: str | None, tmp_path: Path) -> None:
    """They are counted; what stands beside them reads as ever, allocator events included."""
    memory = {"ph": "i", "name": "[memory]", "ts": 5, "args": {"Bytes": 64, "Total Allocated": 9}}
    strange = {"cat": "odd", "ts": 3} | ({"ph": odd} if odd else {})
    whole = trace_of(tmp_path, [*EVENTS, memory])
    found = trace_of(tmp_path, [*EVENTS, strange, memory])
    assert found.counts - whole.counts == {(odd or "", "odd"): 1}
    assert found.memory.tolist() == whole.memory.tolist() != []
    assert_same(replace(found, counts=whole.counts), whole)


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """As a shell's ``<(zcat trace.json.gz)`` gives one."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as writer:
        writer.submit(path.write_text, compact(EVENTS))
        assert_same(read_trace(path), trace_of(tmp_path, EVENTS))


def test_progress_counts_the_bytes_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", EVENTS)
    seen: list[tuple[int, int]] = []
    read_trace(path, lambda done, size: seen.append((done, size)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
