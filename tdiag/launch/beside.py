"""Watches a notebook's kernel from a process beside it, as `tdiag run` watches its program.

Run as ``beside RUN_DIR PID``: reads one byte, or the end of its input, when the cell has ended, and
closes its output when it has nothing more to write.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from pathlib import Path

import psutil

from tdiag.launch.measured_roof import calibrate
from tdiag.launch.process import TICK_S
from tdiag.launch.session import LOOK_EVERY_S
from tdiag.sample.pyspy import PySpy
from tdiag.sample.storage import try_storage
from tdiag.sample.system import SystemSampler


def watch(run_dir: Path, pid: int) -> None:
    """Until the cell or the kernel ends."""
    pyspy = PySpy(run_dir)
    system = SystemSampler(run_dir / "system.jsonl", pid)
    looked = 0.0
    try:
        while not select.select([0], [], [], TICK_S)[0] and psutil.pid_exists(pid):
            pyspy.tick()
            if time.monotonic() - looked >= LOOK_EVERY_S:
                looked = time.monotonic()
                system.sample()
    finally:
        pyspy.close()
        system.close()
    try_storage(run_dir)
    calibrate(run_dir)


if __name__ == "__main__":
    # No child of the kernel: it would be sampled with it, and counted as its own.
    if os.fork():
        os._exit(0)
    os.setsid()  # an interrupt is for the kernel
    with contextlib.suppress(KeyboardInterrupt):
        watch(Path(sys.argv[1]), int(sys.argv[2]))
