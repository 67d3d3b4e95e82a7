"""How far the run is, from tailing ``events/*.jsonl`` while the program writes them.

The reader shares the machine with what it measures. Records of steps and fetches may come
hundreds of times a second, so they are told apart as bytes, and their marks are never parsed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

# Every record begins with its kind (docs/run-directory.md).
STEPS = re.compile(rb'\{"kind": ?"steps", ?"i": ?(\d+), ?"n": ?(\d+), ?"s": ?\d+, ?"t": ?(\d+)')
# Records the display and the closing note need; each comes a few times in a run.
RARE = re.compile(rb'\{"kind": ?"(?:window|boundary|finish|stop|forced|role|torch|failure)"')
# A first look at a file that has grown meanwhile must not hold up the answers to the probe.
CHUNK_BYTES = 4 << 20


class Process:
    """What one process of the program has reported so far. Times are perf_counter ns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_bytes = 0
        self.steps = 0
        self.window = ""
        self.window_pass = 0
        self.window_from: tuple[int, int] | None = None  # (step index, t) at its begin
        self.clean_step_ns: int | None = None  # mean step of the newest baseline window so far
        self.boundary = ""  # what ends a step; "" = no step seen yet
        self.first_step_ns = 0
        self.role = ""
        self.torch = ""
        self.finish = ""
        self.world_size = 1
        self.stopped = False  # the probe has ended the program here
        self.forced = False  # the probe had to end it with a signal
        self.failures: list[str] = []

    def look(self) -> None:
        """Take in what was written since the last look; a torn last line waits for its rest."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.read_bytes)
                data = file.read(CHUNK_BYTES)
        except OSError:
            return
        data = data[: data.rfind(b"\n") + 1]
        self.read_bytes += len(data)
        for line in data.splitlines():
            if steps := STEPS.match(line):
                self._steps(*map(int, steps.groups()))
            elif RARE.match(line):
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            getattr(self, "_" + record["kind"])(record)
        except (ValueError, KeyError, TypeError):
            return  # a display must not fail over a record that it cannot read

    def _steps(self, first: int, count: int, ended: int) -> None:
        self.steps += count
        if self.window == "baseline" and self.window_from:
            steps = first + count - self.window_from[0]
            if steps > 0:
                self.clean_step_ns = (ended - self.window_from[1]) // steps

    def _window(self, record: dict[str, Any]) -> None:
        if record["state"] == "begin":
            self.window, self.window_pass = str(record["name"]), int(record["pass"])
            self.window_from = (int(record["step"]), int(record["t"]))
        elif record["name"] == self.window:
            self.window, self.window_from = "", None

    def _boundary(self, record: dict[str, Any]) -> None:
        self.boundary = str(record["source"])
        self.first_step_ns = int(record.get("took") or 0)

    def _role(self, record: dict[str, Any]) -> None:
        self.role = str(record["role"])
        self.world_size = int(record.get("world_size") or 1)

    def _torch(self, record: dict[str, Any]) -> None:
        self.torch = str(record["version"])

    def _finish(self, record: dict[str, Any]) -> None:
        self.finish = str(record["why"])

    def _stop(self, record: dict[str, Any]) -> None:
        self.stopped = True

    def _forced(self, record: dict[str, Any]) -> None:
        self.forced = True

    def _failure(self, record: dict[str, Any]) -> None:
        self.failures.append(f"{record['where']}: {record['what']}")


class Progress:
    """Every process that has written events, in the order in which they appeared."""

    def __init__(self, run_dir: Path) -> None:
        self.events = run_dir / "events"
        self.processes: dict[str, Process] = {}

    def look(self) -> None:
        """Read on in every event file."""
        for path in sorted(self.events.glob("*.jsonl")):
            if path.name not in self.processes:
                self.processes[path.name] = Process(path)
            self.processes[path.name].look()

    def lead(self) -> Process | None:
        """The training process that has made most steps (rank 0 of equals), or None."""
        training = [p for p in self.processes.values() if p.steps or p.role == "training"]
        return max(training, key=lambda p: p.steps, default=None)

    def forced(self) -> bool:
        """The script swallowed SystemExit, so the probe ended it with SIGTERM."""
        return any(p.forced for p in self.processes.values())

    def stopped(self) -> bool:
        """The probe has ended the program in at least one process."""
        return any(p.stopped for p in self.processes.values())

    def unstopped(self) -> set[int]:
        """Ranks of a job that still train: their process ids."""
        still = (p for p in self.processes.values() if p.steps and not p.stopped)
        return {int(p.path.stem) for p in still if p.world_size > 1}

    def steps(self) -> int:
        """Steps that all processes together have ended."""
        return sum(p.steps for p in self.processes.values())

    def torch_seen(self) -> bool:
        return any(p.torch for p in self.processes.values())
