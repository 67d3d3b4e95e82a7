"""Traces are read whole, a block at a time, and what cannot be read is counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tdiag.errors import RunError
from tdiag.view.chrome_events import Reader, Writer
from tests.trace.making import op


def read(path: Path) -> tuple[list[dict[str, Any]], int]:
    reader = Reader(path)
    return [event for events in reader for event in events], reader.lost


def test_every_phase_and_argument_comes_through(tmp_path: Path) -> None:
    events = [op(f"aten::op{i}", i, 1, Shapes=[{"a": 1}, {"b": i}]) for i in range(30_000)]
    events += [{"ph": "s", "id": 1, "ts": 5, "name": "flow"}, {"ph": "M", "name": "x", "args": {}}]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "traceName": "x", "more": [{"a": 1}]}))
    assert path.stat().st_size > 3 << 20  # several blocks
    assert read(path) == (events, 0)


@pytest.mark.parametrize("head", ['{"schemaVersion": 1, "traceEvents": [', "["])
def test_broken_events_are_left_out_and_counted(head: str, tmp_path: Path) -> None:
    good = [op("a", 1, 1), op("b\udc80", 2, 1), op("c", 3, 1)]
    texts = [json.dumps(event) for event in good]
    texts.insert(1, texts[0].replace('"a"', '"a"b"'))
    texts[2] = texts[2].replace('"dur": 1', '"dur": NaN')
    path = tmp_path / "trace.json"
    path.write_text(head + ",\n".join(texts) + ("]}" if head != "[" else "]"))
    events, lost = read(path)
    assert [event["name"] for event in events] == ["a", "b\udc80", "c"]
    assert lost == 1


def test_a_truncated_trace_gives_what_is_there(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [op(f"aten::op{i}", i, 1) for i in range(200)]})
    packed = gzip.compress(text.encode())
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    events, lost = read(path)
    assert [event["name"] for event in events] == [f"aten::op{i}" for i in range(len(events))]
    assert 50 < len(events) < 200 and lost == 1


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("hello")
    with pytest.raises(RunError, match="not JSON"):
        read(path)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "out.json.gz"
    with Writer(path, {"displayTimeUnit": "ms"}) as writer:
        writer.write([])
        writer.write([op("a\udc80", 1, 1)])
        writer.write([op("ü", 2, 1), op("c", 3, float("nan"))])
    whole = json.loads(gzip.decompress(path.read_bytes()))
    assert whole["displayTimeUnit"] == "ms"
    assert [event["name"] for event in whole["traceEvents"]] == ["a\udc80", "ü", "c"]
    with Writer(path, {}):
        pass
    assert json.loads(gzip.decompress(path.read_bytes())) == {"traceEvents": []}
