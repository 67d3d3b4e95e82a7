"""The start of a run, cut into parts that add up to the end of the first step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tdiag.evidence.from_run import load_run
from tdiag.evidence.machine import Startup

from .making import MS, TRAIN, Run, loader, plain


def startup_of(folder: Path, workers: bool = False, why: str = "exit", **config: Any) -> Startup:
    """Python at 100 ms, torch from 400 to 900, the first batch asked for at 2000 ms, the end of
    the first step at 3000; the process ends 10 s after torch was there."""
    folder.mkdir(exist_ok=True)
    run = Run(folder)
    run.lines[0].update(t=900 * MS, started=100 * MS, import_torch=400 * MS, unix_ns=10**18)
    run.lines[-1].update(t=3000 * MS)
    loader(run, TRAIN, num_workers=int(workers))
    pids = [101] if workers else []
    run.add("iterator", t=2050 * MS, loader=TRAIN, pids=pids, start_ns=50 * MS)
    fetching = run
    if workers:
        fetching = Run(folder, pid=101)
        fetching.lines = fetching.lines[:1]
        fetching.add("role", role="worker", tid=101, worker=0, loader=-1)
    fetching.add("fetch", t=2060 * MS, wall=400 * MS, loader=TRAIN, worker=0 if workers else None)
    fetching.add("fetch", t=2500 * MS, wall=400 * MS, loader=TRAIN, worker=0 if workers else None)
    if workers:
        fetching.write()
    run.now = run.began = 3000 * MS
    run.steps(30, plain).add("finish", t=run.now, why=why)
    (folder / "config.json").write_text(json.dumps(config))
    found = load_run(run.write(end_unix_ns=10**18 + 10_000 * MS)).get(Startup)
    assert found is not None
    return found


def ms(startup: Startup) -> dict[str, float]:
    return {name: ns / MS for name, ns in startup.parts_ns.items()}


def test_parts_add_up_to_the_end_of_the_first_step(tmp_path: Path) -> None:
    found = startup_of(tmp_path)
    assert ms(found) == {
        "imports": 300, "import torch": 500, "set-up": 1100, "workers": 50, "first batch": 410,
        "first step": 540,
    }  # fmt: skip
    assert found.total_ns == (3000 - 100) * MS
    assert found.run_ns == (10_000 + 900 - 100) * MS


def test_a_workers_first_batch_counts(tmp_path: Path) -> None:
    assert ms(startup_of(tmp_path, workers=True))["first batch"] == 410


def test_how_long_a_run_takes_that_tdiag_ends_is_not_known(tmp_path: Path) -> None:
    assert startup_of(tmp_path / "a", why="complete", profiling=True).run_ns is None
    assert startup_of(tmp_path / "b", why="exit", profiling=True).run_ns is not None
    assert startup_of(tmp_path / "c", why="complete", profiling=False).run_ns is not None


def test_a_run_of_an_older_probe_has_no_start(tmp_path: Path) -> None:
    assert load_run(Run(tmp_path).steps(30, plain).write()).get(Startup) is None
