"""Makes event files as the probe writes them, from a script of what the training did."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tdiag.evidence.from_run.slices import UNMEASURED
from tdiag.probe.wire import ON_CPU, STEP_END

MS = 1_000_000
NEXT, FORWARD, BACKWARD, OPTIMIZER, SAVE, GC, COMM = 0, 2, 4, 6, 8, 10, 14
MODEL, CRITERION, TEACHER, CRITIC = 0, 1, 2, 3
TRAIN, VALID = 0, 1


class Run:
    """One training process. Times are given in ms; CPU time equals wall time unless told.

    Modules: 0 the model, 1 a torch loss, 2 a teacher, 3 a critic. Loaders: 0, 1.
    """

    def __init__(
        self, folder: Path, boundary: str = "optimizer", pid: int = 100, rank: int = 0
    ) -> None:
        self.folder, self.pid = folder, pid
        self.now = self.began = 1_000 * MS
        self.marks: list[int] = []
        self.lines: list[dict[str, Any]] = []
        self.number = 0
        self.window = "baseline"
        self.add("process", pid=pid, ppid=1, t=0, unix_ns=0, python="3.11", rank=rank,
                 world_size=1)  # fmt: skip
        for number, name in enumerate(("Model", "CrossEntropyLoss", "Teacher", "Critic")):
            self.add(
                "module", id=number, name=name, at=["/u/train.py", 10 * number + 1, "forward"],
                parameters=0 if number == CRITERION else 1000, parameter_bytes=4000,
                loss=number == CRITERION,
            )  # fmt: skip
        self.add("role", role="training", tid=pid)
        self.add("boundary", t=0, source=boundary)

    def add(self, kind: str, **fields: Any) -> None:
        self.lines.append({"kind": kind, **fields})

    # --- what the training does -----------------------------------------------------------------

    def gap(self, ms: float) -> None:
        self.now += round(ms * MS)

    @contextmanager
    def inside(self, code: int, arg: int = 0, ret: int = 0) -> Iterator[None]:
        self.mark(code, arg)
        yield
        self.mark(code + 1, ret)

    def pair(self, code: int, ms: float, arg: int = 0, ret: int = 0) -> None:
        with self.inside(code, arg, ret):
            self.gap(ms)

    def batch(self, ms: float, loader: int = TRAIN, ready: int = -1) -> None:
        self.pair(NEXT, ms, loader, ready)

    def iterate(self, ms: float, loader: int = TRAIN) -> None:
        self.pair(NEXT, ms, loader, -2)

    def forward(
        self, ms: float, module: int = MODEL, train: bool = True, grad: bool = True,
        scalar: bool = False,
    ) -> None:  # fmt: skip
        self.pair(FORWARD, ms, module * 4 + grad * 2 + train, int(scalar))

    def backward(self, ms: float, waits: float = 0.0, arg: int = 0) -> None:
        """``waits``: at its end, for the other ranks."""
        with self.inside(BACKWARD, arg):
            self.gap(ms)
            if waits:
                self.pair(COMM, waits)

    def update(self, ms: float, number: int = 0) -> None:
        self.pair(OPTIMIZER, ms, number)

    def end(self) -> None:
        log: list[int] = []
        for code, wall, on_cpu, arg in zip(*(self.marks[i::4] for i in range(4)), strict=True):
            if on_cpu != UNMEASURED:
                log += (ON_CPU, on_cpu, 0)
            log += (code, self.began + wall, arg)
        log += (STEP_END, self.now, 0)
        self.add("steps", i=self.number, n=1, s=self.began, t=self.now, w=self.window, m=log)
        self.number += 1
        self.began, self.marks = self.now, []

    def pause(self, ms: float) -> None:
        """tdiag works between two steps: that is in no step."""
        self.now += round(ms * MS)
        self.began = self.now

    def open(self, window: str, number: int = 1) -> None:
        self.window = window
        self.add("window", t=self.now, name=window, state="begin", step=self.number)
        self.lines[-1]["pass"] = number

    def steps(self, count: int, step: Callable[[Run, int], None]) -> Run:
        """``count`` steps of the baseline."""
        self.open("baseline")
        for number in range(count):
            step(self, number)
            self.end()
        return self

    def late(self, number: int, step: Callable[[Run, int], None], **fields: Any) -> Run:
        """A late window of eight steps from this one on."""
        self.number = number
        for further in range(8):
            step(self, number + further)
            self.end()
        mine, self.lines = self.lines[-8:], self.lines[:-8]
        marks = [value for line in mine for value in line["m"]]
        self.add("late", i=number, n=8, s=mine[0]["s"], t=mine[-1]["t"], m=marks, **fields)
        self.pause(1000)
        return self

    # --- writing --------------------------------------------------------------------------------

    def write(self, torn: str = "", **run: Any) -> Path:
        events = self.folder / "events"
        events.mkdir(exist_ok=True, parents=True)
        lines = "".join(json.dumps(line) + "\n" for line in self.lines)
        (events / f"{self.pid}.jsonl").write_text(lines + torn)
        record = {"schema": 1, "command": ["python", "train.py"], "script": "train.py"}
        (self.folder / "run.json").write_text(json.dumps(record | run))
        return self.folder

    def mark(self, code: int, arg: int) -> None:
        since = self.now - self.began
        cpu = since if code <= FORWARD else -1  # as the probe does: the CPU clock is dear
        self.marks += [code, since, cpu, arg]


def plain(run: Run, number: int = 0) -> None:
    """The loop of every tutorial: 30 ms."""
    run.gap(1)  # after the step
    run.batch(4)
    run.gap(2)  # prepare
    run.forward(6)
    run.gap(0.5)
    run.forward(1.5, CRITERION, scalar=True)
    run.gap(1)
    run.backward(10)
    run.gap(1)  # clipping
    run.update(3)


def loader(run: Run, number: int = TRAIN, **fields: Any) -> None:
    run.add("loader", id=number, num_workers=fields.pop("num_workers", 0), **fields)
