"""What is known about a late rank: its batches, its line, its wait for a core."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tdiag.evidence.ranks import Beside, LateRank
from tdiag.probe.wire import stacks_file

from .making import MS, TRAIN
from .test_ranks_of_run import about_late, job, step


def append(folder: Path, pid: int, *records: dict[str, object]) -> None:
    with (folder / "events" / f"{pid}.jsonl").open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def fetches(sizes: list[int], worker: int | None = None) -> list[dict[str, object]]:
    """Of the training loader, each of 32 samples."""
    return [
        {"kind": "fetch", "t": n, "wall": 1, "loader": TRAIN, "worker": worker, "samples": 32,
         "bytes": size}
        for n, size in enumerate(sizes)
    ]  # fmt: skip


def test_batches_of_the_late_rank_are_compared_with_the_others(tmp_path: Path) -> None:
    job(tmp_path, step(backward=36), step(data=30, backward=10))
    append(tmp_path, 100, *fetches([100, 100]))
    append(tmp_path, 101, {"kind": "iterator", "t": 0, "loader": TRAIN, "pids": [900]})
    worker = {"kind": "process", "pid": 900, "t": 0}
    append(tmp_path, 900, worker, *fetches([300, 500], worker=0))
    at = {"id": TRAIN, "at": ["/u/t.py", 5, "f"], "sampler_at": ["/u/t.py", 3, "g"]}
    append(tmp_path, 101, {"kind": "loader", **at})
    found = about_late(tmp_path)
    assert found.samples == Beside(own=32, others=32)
    assert found.batch_bytes == Beside(own=400, others=100, error=100)
    assert found.line is found.calls is None
    assert found.dealt_at is not None and found.dealt_at.line == 3


def stacks(folder: Path, **lines: list[int]) -> None:
    """Sampled by py-spy: for each process its lines, one sample each."""
    names = sorted({line for seen in lines.values() for line in seen})
    profiles = [
        {
            "type": "sampled", "unit": "seconds", "startValue": 0, "endValue": 1,
            "name": f'Process {pid[1:]} Thread {pid[1:]} "MainThread"',
            "samples": [[names.index(line)] for line in seen], "weights": [0.01] * len(seen),
        }
        for pid, seen in lines.items()
    ]  # fmt: skip
    frames = [{"name": "f", "file": "/u/train.py", "line": line} for line in names]
    file = folder / stacks_file(100)
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"shared": {"frames": frames}, "profiles": profiles}))


def test_the_line_in_which_only_the_late_rank_spends_its_time(tmp_path: Path) -> None:
    job(tmp_path, step(backward=36), step(data=30, backward=10))
    stacks(tmp_path, p100=[7] * 80 + [9] * 20, p101=[7] * 20 + [9] * 20 + [11] * 60)
    found = about_late(tmp_path)
    assert found.line is not None and found.line_ns is not None
    assert found.line.line == 11
    assert (found.line_ns.own, found.line_ns.others) == (pytest.approx(0.6 * 51 * MS), 0)


def test_a_line_that_chance_explains_is_not_named(tmp_path: Path) -> None:
    job(tmp_path, step(backward=36), step(data=30, backward=10))
    stacks(tmp_path, p100=[7] * 8 + [9] * 2, p101=[7] * 6 + [9] * 4)
    assert about_late(tmp_path).line is None


def test_the_main_threads_wait_for_a_core(tmp_path: Path) -> None:
    job(tmp_path, step(backward=36), step(data=30, backward=10))
    assert about_late(tmp_path).queued_ns is None
    machine = {"kind": "machine", "cores_machine": 2, "cores_allowed": 2}
    samples = [
        {"kind": "sample", "t": t * MS, "queued": {"100": t * MS // 10, "101": t * MS // 2}}
        for t in range(0, 5000, 500)
    ]
    lines = "".join(json.dumps(line) + "\n" for line in (machine, *samples))
    (tmp_path / "system.jsonl").write_text(lines)
    found = about_late(tmp_path).queued_ns
    assert found == Beside(own=0.5 * 51 * MS, others=pytest.approx(0.1 * 51 * MS))


def test_where_nobody_is_late_nobody_is_compared(tmp_path: Path) -> None:
    assert job(tmp_path, step(), step()).get(LateRank) is None
