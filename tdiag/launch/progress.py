"""How far the run is, read from ``events/*.jsonl`` while the program writes them.

The reader shares the machine with what it measures. Records of steps and fetches may come hundreds
of times a second, so the marks of steps are never parsed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tdiag.probe.wire import BASELINE, STEPS_HEAD, EventsFile, events_files

# Records that the display and the closing note need; each comes a few times per run.
RARE = {
    "process",
    "window",
    "boundary",
    "finish",
    "stop",
    "forced",
    "role",
    "torch",
    "failure",
    "died",
    "unstopped",
}
# The first read of a large file must not delay the answers to the probe.
CHUNK_BYTES = 4 << 20


class Reported:
    """What one process of the program has reported so far. Times are perf_counter ns."""

    def __init__(self, file: EventsFile) -> None:
        self.file = file
        self.steps = 0
        self.window = ""
        self.window_pass = 0
        self.window_from: tuple[int, int] | None = None  # (step index, t) at its begin
        self.clean_step_ns: int | None = None  # mean step of the latest baseline window so far
        self.boundary = ""  # what ends a step; "" = no step seen yet
        self.first_step_ns = 0
        self.role = ""
        self.torch = ""
        self.finish = ""
        self.on_device = False
        self.residue: float | None = (
            None  # slow-down after a trace, share of the clean step; None = not measured
        )
        self.rank, self.world_size = 0, 1
        self.began = self.ended = 0  # when watching began, and when it last wrote
        self.died: dict[str, Any] | None = None  # the record of the exception that ended it
        self.stopped = False  # the probe has ended the program here
        self.absent = 0  # ranks that could not be asked to stop, so no rank was
        self.forced = False  # the probe had to end it with a signal
        self.failures: list[str] = []

    def look(self) -> None:
        """Read what was written since the last call."""
        try:
            lines = self.file.read(CHUNK_BYTES)
        except OSError:
            return
        for kind, line in lines:
            if kind in RARE:
                self._take(kind, line)
            elif kind == "steps" and (steps := STEPS_HEAD.match(line)):
                self._steps(*map(int, steps.groups()))

    def _take(self, kind: str, line: bytes) -> None:
        try:
            getattr(self, "_" + kind)(json.loads(line))
        except (ValueError, KeyError, TypeError):
            return  # the display ignores a record that it cannot read

    def _steps(self, first: int, count: int, ended: int) -> None:
        self.steps += count
        self.ended = ended
        if self.window == BASELINE and self.window_from and not self.on_device:
            steps = first + count - self.window_from[0]
            if steps > 0:
                self.clean_step_ns = (ended - self.window_from[1]) // steps

    def _process(self, record: dict[str, Any]) -> None:
        self.began = self.ended = int(record["t"])

    def _window(self, record: dict[str, Any]) -> None:
        if record["state"] == "begin":
            self.window, self.window_pass = str(record["name"]), int(record["pass"])
            self.window_from = (int(record["step"]), int(record["t"]))
        elif record["name"] == self.window:
            if record.get("drained") is not None and self.window == BASELINE and self.window_from:
                # Launched is not finished: on a device only whole windows have a duration.
                steps = int(record["step"]) - self.window_from[0]
                self.clean_step_ns = (int(record["t"]) - self.window_from[1]) // max(1, steps)
            self.window, self.window_from = "", None

    def _boundary(self, record: dict[str, Any]) -> None:
        self.boundary = str(record["source"])
        self.first_step_ns = int(record.get("took") or 0)

    def _role(self, record: dict[str, Any]) -> None:
        self.role = str(record["role"])
        self.rank = int(record.get("rank") or 0)
        self.world_size = int(record.get("world_size") or 1)

    def _torch(self, record: dict[str, Any]) -> None:
        self.torch = str(record["version"])
        self.on_device = bool(record.get("device"))

    def _finish(self, record: dict[str, Any]) -> None:
        self.finish = str(record["why"])
        self.ended = max(self.ended, int(record["t"]))
        self.residue = record.get("residue")

    def _died(self, record: dict[str, Any]) -> None:
        self.ended = max(self.ended, int(record["t"]))
        self.rank, self.world_size = int(record["rank"]), int(record["world_size"])
        self.died = record

    def _stop(self, record: dict[str, Any]) -> None:
        self.stopped = True

    def _unstopped(self, record: dict[str, Any]) -> None:
        self.absent = int(record["absent"])

    def _forced(self, record: dict[str, Any]) -> None:
        self.forced = True

    def _failure(self, record: dict[str, Any]) -> None:
        self.failures.append(f"{record['where']}: {record['what']}")


class Progress:
    """Every process that has written events, in order of appearance."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.processes: dict[str, Reported] = {}

    def look(self) -> None:
        """Read the new records of every event file."""
        for file in events_files(self.run_dir):
            self.processes.setdefault(file.path, Reported(file)).look()

    def lead(self) -> Reported | None:
        """The training process that has made most steps (rank 0 if several are equal), or None."""
        training = [p for p in self.processes.values() if p.steps or p.role == "training"]
        return max(training, key=lambda p: p.steps, default=None)

    def forced(self) -> bool:
        """Whether the script swallowed SystemExit, so the probe ended it with SIGTERM."""
        return any(p.forced for p in self.processes.values())

    def stopped(self) -> bool:
        """Whether the probe has ended the program in at least one process."""
        return any(p.stopped for p in self.processes.values())

    def unstopped(self) -> set[int]:
        """Process ids of the job's ranks that still train."""
        still = (p for p in self.processes.values() if p.steps and not p.stopped)
        return {p.file.pid for p in still if p.world_size > 1}

    def ranks(self) -> list[Reported]:
        """The ranks of a distributed job that have made a step, or died; if there were several jobs
        or attempts, those of the last."""
        return self.jobs()[-1]

    def jobs(self) -> list[list[Reported]]:
        """The ranks of each job, in order: a launcher may restart a failed job, and a script may
        run several jobs in sequence. A rank that appears again after its end begins a new job."""
        found: list[list[Reported]] = [[]]
        ranks = [p for p in self.processes.values() if p.world_size > 1]
        for rank in sorted(ranks, key=lambda p: p.began):
            if any(p.rank == rank.rank and p.ended < rank.began for p in found[-1]):
                found.append([])
            found[-1].append(rank)
        return found

    def steps(self) -> int:
        """The number of steps that all processes together have ended."""
        return sum(p.steps for p in self.processes.values())

    def torch_seen(self) -> bool:
        return any(p.torch for p in self.processes.values())
