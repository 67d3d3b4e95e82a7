"""Writes this process's events: one JSON object a line, appended, safe against sudden death."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from .wire import EVENTS, RecordKind, events_file

FLUSH_EVERY_NS = 250_000_000  # with stop.POLL_NS: what a killed process can lose at most
FLUSH_EACH_OF_FIRST = 100  # short runs and early crashes lose nothing
_encode = json.JSONEncoder(default=str, separators=(",", ":")).encode


class Recorder:
    """Appends to ``events/<pid>.jsonl``. After a failed write (disk full) it stays silent.

    ``lines``: not yet written.
    """

    def __init__(self, run_dir: str) -> None:
        self.run_dir = run_dir
        self.descriptor: int | None = None
        self.pid = -1
        self.lines: list[str] = []
        self.count = 0
        self.flushed_ns = 0
        self.broken = False

    def write(self, kind: RecordKind, **fields: Any) -> None:
        """Add one record. Values must be JSON-ready; others are written as their ``str``."""
        if self.pid != os.getpid():
            self.forget_parent()
        self.lines.append(_encode({"kind": kind, **fields}))
        self.flush_if_due(time.perf_counter_ns())

    def flush_if_due(self, now: int) -> None:
        self.count += 1
        if now - self.flushed_ns > FLUSH_EVERY_NS or self.count < FLUSH_EACH_OF_FIRST:
            self.flush(now)

    def flush(self, now: int | None = None) -> None:
        if self.broken or not self.lines or self.pid != os.getpid():
            return
        data = ("\n".join(self.lines) + "\n").encode()
        self.lines.clear()
        self.flushed_ns = now or time.perf_counter_ns()
        try:
            if self.descriptor is None:
                path = os.path.join(self.run_dir, events_file(self.pid))
                self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            while data:
                data = data[os.write(self.descriptor, data) :]
        except OSError as error:
            self.broken = True
            self._tell_failure(error)

    def forget_parent(self) -> None:
        """After a fork: the parent's unwritten lines and open file are the parent's."""
        self.pid = os.getpid()
        self.descriptor = None
        self.lines = []
        self.count = 0
        self.broken = False

    def _tell_failure(self, error: OSError) -> None:
        # An empty file needs no data block, so this often works even on a full disk.
        name = f"events-lost-{self.pid}-{error.errno}"
        try:
            path = os.path.join(self.run_dir, EVENTS, name)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError:
            pass
