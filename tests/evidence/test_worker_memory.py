"""The memory that a loader's workers wrote, from the machine's samples."""

from __future__ import annotations

import json
from pathlib import Path

from tdiag.evidence.feeding import Loaders, WorkerMemory
from tdiag.evidence.from_run import load_run

from .making import TRAIN, Run, loader, plain

MB = 1 << 20


def found(folder: Path, *samples: dict[str, int]) -> WorkerMemory | None:
    run = Run(folder)
    loader(run, num_workers=2, containers=[["pairs", "list", 200_000, "tuple"]])
    run.add("iterator", t=run.now, loader=TRAIN, pids=[7, 8])
    run.steps(30, lambda run, number: plain(run)).write()
    records = [
        {"kind": "machine", "t": 0, "cores_machine": 2, "cores_allowed": 2},
        *(
            {"kind": "sample", "t": second * 1_000_000_000, "private": private}
            for second, private in enumerate(samples)
        ),
    ]
    (folder / "system.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    evidence = load_run(folder)
    (about,) = (x for loaders in [evidence.get(Loaders)] if loaders for x in loaders.loaders)
    assert about.containers[0].items == 200_000
    return evidence.get(WorkerMemory)


def test_growth_is_taken_from_the_second_sample_of_each_worker(tmp_path: Path) -> None:
    memory = found(
        tmp_path, {}, {"7": 1 * MB, "9": 4 * MB}, {"7": 50 * MB, "8": 30 * MB}, {},
        {"7": 80 * MB, "8": 50 * MB}, {"7": 90 * MB, "8": 80 * MB},
    )  # fmt: skip
    assert memory is not None
    assert (memory.loader, memory.workers) == (TRAIN, 2)
    assert memory.private_bytes == 85 * MB
    assert memory.grown_bytes == (40 + 30) / 2 * MB
    assert memory.seconds == 2.0


def test_two_samples_tell_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, {"7": 1 * MB}, {"7": 50 * MB}) is None
