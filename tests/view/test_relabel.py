"""The copy for torch-tb-profiler: what it understands, and nothing that makes it drop the file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tdiag.trace import read_trace
from tdiag.view.relabel import SKIPPED, category_for, relabel
from tests.trace.making import call, kernel, note, op, step, write


@pytest.mark.parametrize(
    ("category", "name", "expected"),
    [
        ("user_annotation", "enumerate(DataLoader)#_x.__next__", "cpu_op"),
        ("user_annotation", "ProfilerStep#3", "user_annotation"),
        ("gpu_user_annotation", "ProfilerStep#3", SKIPPED),
        ("user_annotation", "ProfilerStep#last", SKIPPED),
        ("gpu_user_annotation", "forward", SKIPPED),
        ("cuda_runtime", "cudaLaunchKernel", "runtime"),
        ("cuda_driver", "cuLaunchKernelEx", "runtime"),
        ("Runtime", "cudaLaunchKernel", "runtime"),
        ("concurrent_kernel", "gemm", "kernel"),
        ("Kernel", "gemm", "Kernel"),
        ("", "nothing", SKIPPED),
    ],
)
def test_categories(category: str, name: str, expected: str) -> None:
    assert category_for(category, name) == expected


def copied(tmp_path: Path, events: list[dict[str, Any]], **metadata: Any) -> dict[str, Any]:
    source = write(tmp_path / "host_1.pt.trace.json", events, **metadata)
    before = source.read_bytes()
    target = tmp_path / "copy.json.gz"
    assert relabel(read_trace(source), target, [[{"ph": "M", "name": "more", "ts": 0}]]) == 0
    assert source.read_bytes() == before
    document: dict[str, Any] = json.loads(gzip.decompress(target.read_bytes()))
    return document


def test_times_start_at_zero_and_the_base_moves(tmp_path: Path) -> None:
    """4e12 µs, as Kineto counts since its base, leave the plugin's sums no room for nanoseconds."""
    far = 4_416_997_719_617.515
    events = [step(1, far, 10), op("a", far + 1.001, 2.002)]
    found = copied(tmp_path, events, baseTimeNanoseconds=1_000)
    first, second, _ = found["traceEvents"]
    assert (first["ts"], second["ts"]) == (0.0, pytest.approx(1.001, abs=1e-9))
    assert found["baseTimeNanoseconds"] == 1_000 + 4_416_997_719_617_515


def test_the_events_are_last_so_that_the_plugin_can_add_its_own(tmp_path: Path) -> None:
    source = write(tmp_path / "a.json", [op("a", 1, 1)], deviceProperties=[{"id": 0}])
    target = tmp_path / "copy.json.gz"
    relabel(read_trace(source), target)
    assert gzip.decompress(target.read_bytes()).endswith(b"]}")


def test_what_would_make_the_plugin_drop_the_file(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        op("a", 1, 5, tid="stream of text"),
        {"ph": "X", "name": "no category", "pid": 1, "tid": 1, "ts": 3, "dur": 1},
        {"ph": "X", "cat": "cpu_op", "name": "no duration", "pid": 1, "tid": 1, "ts": 3},
        {"ph": "X", "cat": "kernel", "name": "no args", "pid": 0, "tid": "stream 7", "ts": 3,
         "dur": 1, "args": None},
        {"ph": "i", "ts": 4, "s": "g"},
        {"ph": "i", "name": "no time"},
        call("cudaLaunchKernel", 5, 1, 7), kernel("k", 7, 2, 7), note("mine", 9, 1),
    ]  # fmt: skip
    found = {e["name"]: e for e in copied(tmp_path, events)["traceEvents"]}
    assert set(found) == {
        "ProfilerStep#1", "a", "no category", "no args", "", "cudaLaunchKernel", "k", "mine", "more"
    }  # fmt: skip
    assert found["a"]["tid"] == -1 and found["no args"]["tid"] == "stream 7"
    assert found["no category"]["cat"] == SKIPPED and found["no args"]["args"] == {}
