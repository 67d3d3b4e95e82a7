"""A script of the zoo without tdiag: what a watched one is compared with."""

from __future__ import annotations

import subprocess
from functools import cache

from tests import warm

from .table import SCRIPTS, Entry

STEPS = 40  # the quick pass over every profiler takes some thirty


@cache
def run_warm(entry: Entry, steps: int) -> subprocess.CompletedProcess[str]:
    """In a Python that has imported torch already; once for all tests of a process, which compare
    with it."""
    return warm.run(entry.target(steps), SCRIPTS, entry.environment())


def run_plainly(entry: Entry, steps: int) -> subprocess.CompletedProcess[str]:
    """What imported torch shows in a traceback alone, so what ends with one is started as users
    start it."""
    if not entry.returncode:
        return run_warm(entry, steps)
    return subprocess.run(
        entry.command(steps), cwd=SCRIPTS, env=entry.environment(), text=True,
        capture_output=True, timeout=200, check=False,
    )  # fmt: skip
