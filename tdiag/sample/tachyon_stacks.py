"""Reads stacks with Python's own sampler (``profiling.sampling``, "Tachyon"; Python 3.15).

Run by the interpreter of the process that is sampled, because the sampler reads the memory of its
own version of Python only. Standard library only, and nothing of tdiag's, which that interpreter
may not have. ``PID`` alone prints the stacks of its threads now, as ``py-spy dump --json`` does;
``PID RATE_HZ OUTPUT`` samples the process and its descendants until SIGINT, then writes a
speedscope file. The process is not stopped for a sample: a stack that changes while it is read is
left out.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import _remote_debugging as remote  # type: ignore[import-not-found]
from profiling.sampling.sample import SampleProfiler  # type: ignore[import-not-found]

SAMPLING = "Sampling process"  # py-spy's words; printed once a stack has been read
EXPORTER = "tachyon"  # probe.wire.TACHYON
NEW_CHILDREN_S = 0.25  # looking through /proc costs more than a sample
FAILURES = (RuntimeError, UnicodeDecodeError, MemoryError, OSError, SystemExit)


def frames_of(thread: Any) -> list[dict[str, Any]]:
    """The innermost frame first; qualified names, as py-spy gives."""
    return [
        {
            "name": frame.funcname,
            "filename": frame.filename,
            "line": frame.location.lineno if frame.location else 0,
        }
        for frame in thread.frame_info
    ]


def stacks(pid: int) -> list[dict[str, Any]]:
    """One moment of each thread."""
    return [
        {
            "thread_id": thread.thread_id,
            "thread_name": "MainThread" if thread.thread_id == pid else None,
            "frames": frames_of(thread),
        }
        for interpreter in SampleProfiler(pid, 1_000_000, all_threads=True).dump_stack()
        for thread in interpreter.threads
    ]


class Sampler:
    """The stacks of a process and its descendants."""

    def __init__(self, pid: int, rate_hz: int) -> None:
        self.pid, self.rate_hz = pid, rate_hz
        self.readers: dict[int, SampleProfiler] = {}
        self.refused: set[int] = set()
        self.looked_s = 0.0
        self.frames: dict[tuple[str, str, int], int] = {}  # name, file, line: its number
        # of each process and thread, the outermost frame first
        self.samples: dict[tuple[int, int], list[list[int]]] = {}

    def run(self) -> None:
        """Until SIGINT, or until the process has ended."""
        self.readers[self.pid] = self._reader(self.pid)
        self.readers[self.pid].dump_stack()  # raises what refuses it
        print(SAMPLING, self.pid, flush=True)
        due = time.perf_counter()
        while self.pid in self.readers:
            if due - self.looked_s >= NEW_CHILDREN_S:
                self.looked_s = due
                self._find_children()
            for pid, reader in list(self.readers.items()):
                self._sample(pid, reader)
            due = max(due + 1 / self.rate_hz, time.perf_counter())
            time.sleep(max(0.0, due - time.perf_counter()))

    def _reader(self, pid: int) -> SampleProfiler:
        return SampleProfiler(pid, 1_000_000 // self.rate_hz, all_threads=True)

    def _find_children(self) -> None:
        for pid in remote.get_child_pids(self.pid, recursive=True):
            if pid in self.readers or pid in self.refused or pid == os.getpid():
                continue
            try:
                self.readers[pid] = self._reader(pid)
            except FAILURES:
                self.refused.add(pid)  # not a Python, or not of this version

    def _sample(self, pid: int, reader: SampleProfiler) -> None:
        try:
            interpreters = reader.dump_stack()
        except ProcessLookupError:
            del self.readers[pid]
            return
        except FAILURES:
            return  # the stack changed while it was read
        for interpreter in interpreters:
            for thread in interpreter.threads:
                frames = [(f["name"], f["filename"], f["line"]) for f in frames_of(thread)]
                stack = [self.frames.setdefault(f, len(self.frames)) for f in reversed(frames)]
                if stack:
                    self.samples.setdefault((pid, thread.thread_id), []).append(stack)

    def speedscope(self) -> dict[str, Any]:
        """One profile per thread, named as py-spy names them; weights in seconds."""
        profiles = [
            {
                "type": "sampled",
                "name": f"Process {pid} Thread {tid}" + (' "MainThread"' if tid == pid else ""),
                "unit": "seconds",
                "startValue": 0.0,
                "endValue": len(samples) / self.rate_hz,
                "samples": samples,
                "weights": [1 / self.rate_hz] * len(samples),
            }
            for (pid, tid), samples in self.samples.items()
        ]
        return {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "profiles": profiles,
            "shared": {"frames": [{"name": n, "file": f, "line": i} for n, f, i in self.frames]},
            "activeProfileIndex": 0,
            "exporter": f"{EXPORTER} of Python {sys.version.split()[0]}",
            "name": EXPORTER,
        }


def main(pid: int, rate_hz: int, output: Path) -> None:
    sampler = Sampler(pid, rate_hz)
    with contextlib.suppress(KeyboardInterrupt):
        sampler.run()
    with output.open("w", encoding="utf-8") as file:
        json.dump(sampler.speedscope(), file)


if __name__ == "__main__":
    try:
        if len(sys.argv) == 2:
            json.dump(stacks(int(sys.argv[1])), sys.stdout)
        else:
            main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    except FAILURES as error:
        sys.exit(f"Error: {error}")
