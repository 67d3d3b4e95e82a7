"""Watches a notebook's kernel from a separate process, as `tdiag run` watches its program.

Run as ``beside RUN_DIR PID``. One byte, or the end of its input, tells it that the cell has ended.
It closes its output when it has written everything.
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
from tdiag.sample.cores import try_cores
from tdiag.sample.pyspy import PySpy
from tdiag.sample.storage import try_storage
from tdiag.sample.system import SystemSampler


def watch(run_dir: Path, pid: int) -> None:
    """Watch until the cell or the kernel ends."""
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
    try_cores(run_dir)
    calibrate(run_dir)


if __name__ == "__main__":
    # Not a child of the kernel: py-spy would sample it and count it as part of the kernel.
    if os.fork():
        os._exit(0)
    os.setsid()  # an interrupt should reach only the kernel
    with contextlib.suppress(KeyboardInterrupt):
        watch(Path(sys.argv[1]), int(sys.argv[2]))
