"""stacks.speedscope.json: valid, the training thread first, the workers apart."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tdiag.errors import RunError
from tdiag.view import speedscope

from .making import PID, WORKER, make_run

# What speedscope's own file-format-schema.json asks of a sampled profile.
NUMBERS = {"type": "array", "items": {"type": "number"}}
TEXT, NUMBER = {"type": "string"}, {"type": "number"}
SCHEMA = {
    "type": "object",
    "required": ["$schema", "profiles", "shared"],
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "activeProfileIndex": NUMBER, "exporter": TEXT, "name": TEXT,
        "shared": {
            "type": "object", "required": ["frames"],
            "properties": {"frames": {"type": "array", "items": {
                "type": "object", "required": ["name"],
                "properties": {"name": TEXT, "file": TEXT, "line": NUMBER, "col": NUMBER},
            }}},
        },
        "profiles": {"type": "array", "minItems": 1, "items": {
            "type": "object",
            "required": ["type", "name", "unit", "startValue", "endValue", "samples", "weights"],
            "properties": {
                "type": {"const": "sampled"}, "name": TEXT, "startValue": NUMBER,
                "endValue": NUMBER, "weights": NUMBERS,
                "samples": {"type": "array", "items": NUMBERS},
                "unit": {"enum": ["bytes", "microseconds", "milliseconds", "nanoseconds", "none",
                                  "seconds"]},
            },
        }},
    },
}  # fmt: skip


def thread(pid: int, tid: int, *samples: list[int]) -> dict[str, Any]:
    return {
        "type": "sampled", "name": f'Process {pid} Thread {tid} "x"', "unit": "seconds",
        "startValue": 0.0, "endValue": 1.0, "samples": samples, "weights": [0.01] * len(samples),
    }  # fmt: skip


def stacks(run: Path, number: int, frames: list[Any], *profiles: dict[str, Any]) -> None:
    document = {"$schema": "x", "shared": {"frames": frames}, "profiles": profiles}
    (run / f"stacks-{number}.speedscope.json").write_text(json.dumps(document))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = make_run(tmp_path / "run")
    frames = [{"name": "main", "file": "/u/train.py", "line": 3, "col": None}, {"name": "loss"}]
    stacks(run, PID, frames, thread(WORKER, WORKER, [0]), thread(PID, 7, [0]),
           thread(PID, PID, [0, 1], [0, 1], [0, 9]), thread(300, 300))  # fmt: skip
    other = [{"name": "loss"}, {"name": "wait"}]
    stacks(run, 101, other, thread(WORKER, 8, [0, 1]))
    (run / "stacks-102.speedscope.json").write_text('{"shared": {"fra')  # py-spy was killed
    return run


def written(run: Path) -> dict[str, Any]:
    path, _ = speedscope.write(run)
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_it_is_what_speedscope_reads(run: Path) -> None:
    document = written(run)
    jsonschema.Draft7Validator(SCHEMA).validate(document)
    frames = len(document["shared"]["frames"])
    for profile in document["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(0 <= i < frames for sample in profile["samples"] for i in sample)


@pytest.mark.skipif("TDIAG_SPEEDSCOPE_SCHEMA" not in os.environ, reason="its path is not set")
def test_it_follows_the_official_schema(run: Path) -> None:
    schema = json.loads(Path(os.environ["TDIAG_SPEEDSCOPE_SCHEMA"]).read_text())
    jsonschema.validate(written(run), schema)


def test_the_training_thread_comes_first_and_the_workers_apart(run: Path) -> None:
    assert [profile["name"].split(": ")[0] for profile in written(run)["profiles"]] == [
        "training, rank 0 (pid 100)",
        "worker 0 of loader 0 (pid 200)",
        "training's other threads",
        'Process 300 Thread 300 "x"',
        "a worker's other threads",
    ]


def test_frames_of_several_files_are_one_list_outermost_first(run: Path) -> None:
    document = written(run)
    names = [frame["name"] for frame in document["shared"]["frames"]]
    assert names == ["main", "loss", "wait"]
    training, *_, other = document["profiles"]
    assert training["samples"] == [[0, 1], [0, 1], [0]]
    assert [names[i] for i in other["samples"][0]] == ["loss", "wait"]
    assert training["endValue"] == pytest.approx(0.03)


def test_a_run_without_stacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no stacks were sampled"):
        speedscope.write(make_run(tmp_path / "run"))
