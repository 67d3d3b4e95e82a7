"""strace, attached by pid: system calls of the process and its workers, counted and timed.

``-f`` follows future threads and children, and existing threads; existing children (loader workers)
are named. ``-w`` measures wall time, because waiting in calls is the point.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

from tdiag.probe.wire import SYSCALLS, syscalls_file
from tdiag.sample.attached import Attacher
from tdiag.sample.pyspy import allow_hint


class Strace(Attacher):
    """Requests ``syscalls-<pid>-<pass>``; the summary of ``strace -f -c -w`` as a text file."""

    name, prefix, suffix = "strace", SYSCALLS, ".txt"
    absent = "strace is not installed"

    def __init__(self, run_dir: Path, *, enabled: bool = True) -> None:
        super().__init__(run_dir, shutil.which("strace") if enabled else None)

    def command(self, program: str, pid: int, output: Path) -> list[str]:
        pids = [pid, *_children(pid)]
        named = [word for each in pids for word in ("-p", str(each))]
        return [program, "-f", "-c", "-w", "-o", str(output), *named]

    def watching(self, log: str) -> bool:
        return " attached" in log

    def refusal(self, log: str, code: int) -> str:
        if "not permitted" in log or "denied" in log:
            return f"the system does not let strace read the process; {allow_hint()}"
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        return lines[-1] if lines else f"strace: exit code {code}"

    def final(self, name: str) -> Path:
        return self.run_dir / syscalls_file(name.split("-")[1])


def _children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
