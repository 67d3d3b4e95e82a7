"""What can be read of a broken trace is read, and what cannot is said, with its place."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
import zlib
from pathlib import Path

import pytest

from tdiag.errors import RunError
from tdiag.trace import read_trace
from tests.trace.making import kernel, op, trace_of, write


def many(count: int = 500) -> list:
    return [op(f"aten::op{i}", 10 * i, 5) for i in range(count)]


def test_truncated_gzip(tmp_path: Path) -> None:
    data = json.dumps({"traceEvents": many()}).encode()
    packed = gzip.compress(data)
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    trace = read_trace(path)
    assert 50 < len(trace) < 500
    assert trace.damage.truncated_at is not None
    assert data[trace.damage.truncated_at :].startswith(b'{"ph"')  # the first event not read
    assert "truncated gzip" in trace.damage.describe()
    assert f"{trace.damage.truncated_at:,}" in trace.damage.describe()


def test_damaged_gzip(tmp_path: Path) -> None:
    data = json.dumps({"traceEvents": many(20_000)}).encode()
    packer = zlib.compressobj(wbits=31)
    sound = packer.compress(data[: len(data) // 2]) + packer.flush(zlib.Z_FULL_FLUSH)
    path = tmp_path / "t.json.gz"
    path.write_bytes(sound + b"\x07" * 100)  # a deflate block of a type that does not exist
    trace = read_trace(path)
    assert 2000 < len(trace) < 10_000
    assert "damaged gzip" in trace.damage.describe()


def test_truncated_json(tmp_path: Path) -> None:
    text = json.dumps({"deviceProperties": [{"id": 0, "name": "V100"}], "traceEvents": many(10)})
    at = text.index("aten::op7")
    path = tmp_path / "t.json"
    path.write_text(text[:at])
    trace = read_trace(path)
    assert len(trace) == 7
    assert trace.damage.truncated_at == text.rindex("{", 0, text.rindex('"ph"', 0, at) + 1)
    assert trace.device_properties[0]["name"] == "V100"


def test_a_whole_file_has_no_damage(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, many(10))
    assert not trace.damage
    assert trace.damage.describe() == ""


def broken(tmp_path: Path, old: str, new: str) -> Path:
    path = write(tmp_path / "t.json", [op("before", 1, 1), op("NAME", 2, 3.5), op("after", 4, 1)])
    path.write_text(path.read_text().replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("NAME", r"C:\Users\me\train.py(3): f", "C:\\Users\\me\\train.py(3): f"),
        ("NAME", 'say "hello" twice', 'say "hello" twice'),
        ("NAME", "tab\tand\nnewline", "tab\tand\nnewline"),
        ('"args": {}', '"args": {"est. achieved occupancy %": inf, "x": -nan}', "NAME"),
    ],
)
def test_broken_json_inside_an_event_is_repaired(
    tmp_path: Path, old: str, new: str, name: str
) -> None:
    trace = read_trace(broken(tmp_path, old, new))
    assert [trace.names[i] for i in trace.name] == ["before", name, "after"]
    assert trace.dur_ns.tolist() == [1000, 3500, 1000]
    assert trace.damage.lost == 0


def test_an_unreadable_event_is_left_out_and_its_place_said(tmp_path: Path) -> None:
    path = broken(tmp_path, '"ts": 2,', '"ts": ??,')
    trace = read_trace(path)
    assert [trace.names[i] for i in trace.name] == ["before", "after"]
    assert trace.damage.lost == 1
    lost_at = trace.damage.first_lost_at
    assert lost_at is not None
    event = path.read_bytes()[lost_at:]
    assert event.startswith(b"{")
    assert event.index(b"NAME") < event.index(b"after")
    assert f"{lost_at:,}" in trace.damage.describe()


@pytest.mark.parametrize("time", ["1e300", "-9e15", '"NaN"', "172800000000"])
def test_an_event_of_an_impossible_time_is_left_out(tmp_path: Path, time: str) -> None:
    trace = read_trace(broken(tmp_path, '"ts": 2,', f'"ts": {time},'))
    assert [trace.names[i] for i in trace.name] == ["before", "after"]
    assert trace.damage.lost == 1
    assert "is incomplete: 1 event could not be read" in trace.damage.describe()


def test_negative_durations_are_none(tmp_path: Path) -> None:
    assert trace_of(tmp_path, [op("a", 5, -3)]).dur_ns.tolist() == [0]


def test_unexpected_types_cost_only_their_field(tmp_path: Path) -> None:
    odd = kernel("k", 1, 2)
    odd["args"]["device"] = [0]
    odd["tid"] = {"stream": 7}
    trace = trace_of(tmp_path, [odd, op("fine", 3, 1)])
    assert trace.dur_ns.tolist() == [2000, 1000]
    assert trace.device.tolist() == [-1, -1]
    assert trace.stream.tolist() == [7, -1]


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [op("NAME", 1, 1)])
    path.write_bytes(path.read_bytes().replace(b"NAME", b"caf\xe9"))
    assert read_trace(path).names == ["caf\ufffd"]


def test_names_of_five_thousand_characters(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [kernel("k" * 5000, 1, 1), kernel("k" * 5000, 2, 1)])
    assert trace.name[0] == trace.name[1]
    assert len(trace.names[trace.name[0]]) == 1000


def test_memory_does_not_grow_with_what_is_not_used(tmp_path: Path) -> None:
    def peak(filler: str) -> int:
        events = [op("aten::mm", i, 1, **{"Fusion details": filler}) for i in range(4000)]
        path = write(tmp_path / "t.json", events)
        tracemalloc.start()
        read_trace(path)
        _, high = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return high

    # 0.5 MB and 60 MB of file, of which ten blocks of 1 MB may wait for their columns.
    small, large = peak("x"), peak("x" * 15_000)
    assert large < small + 16e6


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"print('hello')\n", "not JSON"),
        (b'{"cells": [], "nbformat": 4}', "traceEvents"),
        (b"[1, 2, 3]", "no trace events"),
        (b'[{"a": 1}]', "no trace events"),
        (gzip.compress(b"hello", mtime=0), "not JSON"),
        (b"\x1f\x8bgarbage", "not"),
    ],
)
def test_what_is_no_trace_gets_one_clear_message(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "thing.json"
    path.write_bytes(content)
    with pytest.raises(RunError) as error:
        read_trace(path)
    assert words in error.value.message
    assert "thing.json" in error.value.message
    assert error.value.hint
    assert error.value.exit_code == 2


def test_arguments_nested_too_deeply_are_left_out(tmp_path: Path) -> None:
    deep = '{"a":' * 50_000 + "1" + "}" * 50_000
    events = ",".join(
        f'{{"ph":"X","cat":"cpu_op","name":"{name}","ts":{ts},"dur":2,"pid":1,"tid":1,"args":{args}}}'
        for name, ts, args in (("first", 1, deep), ("second", 5, "{}"))
    )
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents":[{events}]}}')
    trace = read_trace(path)
    assert trace.names == ["first", "second"]
    assert trace.damage.describe() == (
        "the trace was repaired: 1 event had broken JSON and could be repaired"
    )


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdiag.trace.inflate.WRITER_WITHIN_S", 0.01)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="nothing was written"):
        read_trace(tmp_path / "pipe")


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot read"):
        read_trace(tmp_path / "absent.json")
    with pytest.raises(RunError, match="folder"):
        read_trace(tmp_path)


def test_no_events_at_all_is_a_trace(tmp_path: Path) -> None:
    assert len(trace_of(tmp_path, [])) == 0
