"""A script of the zoo without tdiag: what a watched one is compared with."""

from __future__ import annotations

import subprocess

from tests import warm

from .table import SCRIPTS, Entry


def run_plainly(entry: Entry, steps: int) -> subprocess.CompletedProcess[str]:
    """In a Python that has imported torch already: that shows in a traceback alone, so what ends
    with one is started as users start it."""
    if not entry.returncode:
        return warm.run(entry.target(steps), SCRIPTS, entry.environment())
    return subprocess.run(
        entry.command(steps), cwd=SCRIPTS, env=entry.environment(), text=True,
        capture_output=True, timeout=200, check=False,
    )  # fmt: skip
