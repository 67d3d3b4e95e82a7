"""Samples a start-up that lasts: from a few seconds after torch was imported to the first step.

The probe asks for samples only once the program trains. Until then the program prepares (reads an
index, tokenises, builds a vocabulary), and this class asks.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from tdiag.launch.progress import Progress
from tdiag.probe.wire import STARTUP, STOP, WANT, request, startup_stacks_file
from tdiag.sample.pyspy import PySpy

# A short start-up is left alone: py-spy needs 1 to 3 s on a core to read the symbols.
BEGIN_AFTER_S = 3.0
MOST_S = 120.0  # a program that is no training is not watched for ever
# Many moments are not needed, and py-spy stops the process for each.
RATE_HZ = 20


class StartupSampler(PySpy):
    """Call ``tick`` about twenty times a second."""

    prefix = STARTUP

    def __init__(self, run_dir: Path, progress: Progress, *, enabled: bool = True) -> None:
        super().__init__(run_dir, enabled=enabled, rate_hz=RATE_HZ)
        self.progress = progress
        self.over = not enabled
        self.request = ""
        self.asked_s = 0.0

    def tick(self) -> None:
        if not self.over:
            self._look(time.monotonic())
        super().tick()

    def final(self, name: str) -> Path:
        return self.run_dir / startup_stacks_file(name.split("-")[1])

    def _look(self, now_s: float) -> None:
        if self.live:  # the session looks less often, and clean steps should be without py-spy
            self.progress.look()
        processes = self.progress.processes.values()
        steps = any(process.boundary or process.window for process in processes)
        if self.request and (steps or now_s - self.asked_s > MOST_S):
            self._write(STOP)
        elif not self.request and not steps and (imported := [p for p in processes if p.began]):
            first = min(imported, key=lambda process: process.began)
            if time.perf_counter_ns() - first.began > BEGIN_AFTER_S * 1e9:
                self.request, self.asked_s = request(STARTUP, first.file.pid, 1), now_s
                self._write(WANT)
        self.over = steps or (self.control / f"{self.request}{STOP}").exists()

    def _write(self, what: str) -> None:
        with contextlib.suppress(OSError):
            (self.control / f"{self.request}{what}").touch()
