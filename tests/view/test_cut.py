"""A few steps of a trace: what the host did in them, and what the device did for them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tdiag.trace import read_trace
from tdiag.view.cut import Cut
from tdiag.view.relabel import relabel
from tests.trace.making import launched, note, op, span, step, write


def events() -> list[dict[str, Any]]:
    """Three steps of 1 ms; each launches a kernel that runs while the next one is on."""
    found = [op("before", 0, 5), {"ph": "M", "name": "process_name", "pid": 1, "args": {}}]
    for n in range(3):
        at = 100 + 1000 * n
        found += [step(n, at, 1000), op(f"op{n}", at + 10, 50), note(f"note{n}", at + 100, 5)]
        found += launched(f"kernel{n}", at + 20, at + 1200, 300, n + 1)
        found += [span("gpu_user_annotation", f"ProfilerStep#{n}", at + 1200, 300, tid=7)]
    return found


def copied(tmp_path: Path, steps: int) -> tuple[Cut, list[str]]:
    trace = read_trace(write(tmp_path / "trace.json", events()))
    cut = Cut(trace, steps)
    target = tmp_path / "copy.json.gz"
    lanes = [[op("lane0", 50, 5), op("lane1", 1600, 5)]]
    relabel(trace, target, lanes, cut)
    kept = json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]
    named = [e["name"] for e in kept if e["name"] not in ("process_name", "cudaLaunchKernel")]
    return cut, [name for name in named if not name.startswith("ProfilerStep")]


def test_a_kernel_belongs_to_the_step_that_launched_it(tmp_path: Path) -> None:
    cut, names = copied(tmp_path, 1)
    assert names == ["op0", "note0", "kernel0", "lane0"]
    assert (cut.steps, cut.events) == (1, 5)  # the step, op, note, call and kernel


def test_the_steps_are_the_first_ones(tmp_path: Path) -> None:
    assert copied(tmp_path, 2)[1] == [
        "op0", "note0", "kernel0", "op1", "note1", "kernel1", "lane0", "lane1",
    ]  # fmt: skip


@pytest.mark.parametrize("steps", [3, 99])
def test_no_more_steps_than_there_are(tmp_path: Path, steps: int) -> None:
    cut, names = copied(tmp_path, steps)
    assert cut.steps == 3
    assert names[-3:] == ["kernel2", "lane0", "lane1"] and "before" not in names


def test_a_trace_without_steps_is_not_cut(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "trace.json", [op("a", 0, 1)]))
    assert Cut(trace, 2).steps == 0
