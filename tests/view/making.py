"""A run in which every profiler and sampler left its record, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.evidence.making import FORWARD, MS, NEXT, Run, loader, plain
from tests.evidence.test_system import MACHINE, SECOND, sample
from tests.trace.making import Event, note, op, step

UNIX = 1_700_000_000 * SECOND  # what the events' clock shows as 0
PID, WORKER = 100, 200
NEXT_CALL = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
STEP_MS, WAIT_MS = 30.0, 4.0  # of `plain`


def make_run(folder: Path, opened_us: float = 200.0, **about: Any) -> Path:
    """30 clean steps, then two traced ones. Kineto's clock is Unix time, its base a whole second;
    the first span opens ``opened_us`` after the probe took its time, as it really does."""
    run = Run(folder, pid=PID)
    run.lines[0] |= {"unix_ns": UNIX}
    loader(run, num_workers=1)
    run.add("iterator", t=run.now, loader=0, pids=[WORKER])
    run.steps(30, plain)
    run.add("window", t=run.now, name="baseline", state="end", step=30, **{"pass": 1})
    run.open("trace")
    began, events = run.now, []
    for number in range(2):
        at = run.now
        plain(run)
        run.end()
        events += _traced_step(at, run, number, opened_us)
    run.add("window", t=run.now, name="trace", state="end", step=32, **{"pass": 1})
    name = f"tensorboard/host_{PID}.1700000003000.pt.trace.json"
    run.add("trace", file=name, steps=2, events=9, t=began, **{"pass": 1})
    run.write(**about)
    (folder / "tensorboard").mkdir()
    base = UNIX + SECOND
    for event in events:
        event |= {"ts": (UNIX + event["ts"] - base) / 1e3, "pid": PID, "tid": PID}
    named = {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "ts": 0,
             "args": {"name": "python"}}  # fmt: skip
    document = {"schemaVersion": 1, "baseTimeNanoseconds": base, "traceEvents": [named, *events]}
    (folder / name).write_text(json.dumps(document))
    _write_worker(folder, began)
    lines = (MACHINE, sample(SECOND, 1, 100), sample(2 * SECOND, 2, 600))
    (folder / "system.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def _traced_step(at: int, run: Run, number: int, opened_us: float) -> list[Event]:
    """Kineto's events of a step, ``ts`` in ns on the events' clock; ops lie inside their marks."""
    marks = run.lines[-1]["m"]
    wait = next(marks[i + 1] for i in range(0, len(marks), 3) if marks[i] == NEXT)
    forward = next(marks[i + 1] for i in range(0, len(marks), 3) if marks[i] == FORWARD)
    late = round(opened_us * 1e3)
    return [
        step(number, at + late, STEP_MS * 1e3 - 2 * opened_us),
        note(NEXT_CALL, wait + 20_000, WAIT_MS * 1e3 - 40),
        op("aten::linear", forward + 20_000, 5_000, **{"Input Dims": [[4, 4]]}),
    ]


def _write_worker(folder: Path, began: int) -> None:
    process = {"kind": "process", "pid": WORKER, "t": 0, "unix_ns": UNIX}
    role = {"kind": "role", "role": "worker", "tid": WORKER, "worker": 0}
    fetch = {
        "kind": "fetch", "t": began + 5 * MS, "wall": 10 * MS, "load": 8 * MS, "load_cpu": 2 * MS,
        "collate": 2 * MS, "read": 4096, "loader": 0, "worker": 0,
    }  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in (process, role, fetch))
    (folder / "events" / f"{WORKER}.jsonl").write_text(text)
