"""py-spy's stacks as one speedscope file, the training thread first, then the workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tdiag.errors import RunError
from tdiag.evidence.from_run import read_run
from tdiag.evidence.from_run.event_files import Process, read_events, workers_of
from tdiag.evidence.from_run.stack_files import thread_of
from tdiag.view.lanes import worker_name

FILE = "stacks.speedscope.json"
OPENING = """
  in a browser: https://www.speedscope.app, drop the file (it is not uploaded)
  offline:      npm install -g speedscope; speedscope FILE
"""
SCHEMA = "https://www.speedscope.app/file-format-schema.json"  # speedscope's importer requires it

TRAINING, WORKER, OTHER = range(3)


class _FrameTable(msgspec.Struct):
    frames: list[dict[str, Any]]


class _StackProfile(msgspec.Struct):
    type: str
    samples: list[list[int]]
    weights: list[float]
    name: str = ""
    unit: str = "none"


class _Stacks(msgspec.Struct):
    shared: _FrameTable
    profiles: list[_StackProfile]


def write(run_dir: Path) -> tuple[Path, list[str]]:
    """Write ``stacks.speedscope.json`` into the run directory, atomically. Returns its path, and
    what could not be read.

    Raises RunError if no stacks were sampled, OSError if the file cannot be written.
    """
    read_run(run_dir)
    files = sorted(p for p in run_dir.glob("stacks-*.speedscope.json"))
    text = merge(files, read_events(run_dir))
    if text is None:
        raise RunError(f"no stacks were sampled in {run_dir}", "tdiag report says why")
    path = run_dir / FILE
    part = path.with_name(f"{FILE}.{os.getpid()}.part")
    try:
        part.write_bytes(text)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path, []


def merge(files: list[Path], processes: list[Process]) -> bytes | None:
    """The samples of all the files in one, as JSON; None if there are none.

    Each thread is a profile, named after its process's role: training threads come first, then the
    workers' main threads, then all others. Equal frames are written once.
    """
    frames: dict[bytes, int] = {}
    found = [profile for path in files for profile in _profiles(path, processes, frames)]
    if not found:
        return None
    found.sort(key=lambda pair: pair[0])
    document = {
        "$schema": SCHEMA,
        "exporter": "tdiag",
        "name": "training and its workers",
        "activeProfileIndex": 0,
        "shared": {"frames": [msgspec.Raw(frame) for frame in frames]},
        "profiles": [profile for _, profile in found],
    }
    return msgspec.json.encode(document)


def _profiles(
    path: Path, processes: list[Process], frames: dict[bytes, int]
) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        stacks = msgspec.json.decode(path.read_bytes(), type=_Stacks)
    except msgspec.DecodeError:  # the sampler was killed while writing
        return
    known = [msgspec.json.encode(_frame(frame)) for frame in stacks.shared.frames]
    number = [frames.setdefault(frame, len(frames)) for frame in known]
    for profile in stacks.profiles:
        samples = [
            [number[i] for i in sample if 0 <= i < len(number)] for sample in profile.samples
        ]
        weights = profile.weights[: len(samples)]
        order, name = _role(profile.name, processes)
        yield (
            order,
            {
                "type": "sampled",
                "name": name,
                "unit": profile.unit,
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples[: len(weights)],
                "weights": weights,
            },
        )


def _frame(frame: dict[str, Any]) -> dict[str, Any]:
    """Only the fields that the format has, each with its type."""
    kept: dict[str, Any] = {"name": str(frame.get("name") or "?")}
    if isinstance(frame.get("file"), str):
        kept["file"] = frame["file"]
    for key in ("line", "col"):
        if isinstance(frame.get(key), int):
            kept[key] = frame[key]
    return kept


def _role(name: str, processes: list[Process]) -> tuple[int, str]:
    """A thread's position among the others, and its name."""
    pid, tid = thread_of(name)
    for process in processes:
        if process.pid == pid and process.steps:
            if tid in (process.tid, None):
                return TRAINING, f"training, rank {process.rank} (pid {pid})"
            return OTHER, f"training's other threads: {name}"
        workers = workers_of(process, processes) if process.steps else {}
        if pid in workers:
            worker, loader = workers[pid]
            if tid == worker.tid:
                return WORKER, f"{worker_name(worker, loader)} (pid {pid})"
            return OTHER, f"a worker's other threads: {name}"
    return OTHER, name
