"""What the probe counted at a line."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

from tdiag.evidence.torch_ops import OpLine, Ops

from .harness import Watched, watch_code


def count(folder: Path, script: str) -> Watched:
    """A run of this script with the window ``ops``, and no more steps than that needs."""
    windows = ["baseline", "ops"]
    return watch_code(folder, script, windows=windows, profiling=True, short=True, few=True)


def counted(folder: Path, script: str) -> Ops:
    """What the window ``ops`` counted of this script."""
    run = count(folder, script)
    assert run.returncode == 0 and run.of("failure") == []
    ops = run.evidence().get(Ops)
    assert ops is not None
    return ops


def at_line(folder: Path, script: str, line: int) -> list[OpLine]:
    """The rows of this line in the window ``ops``. One for each phase."""
    return [x for x in counted(folder, script).lines if x.at.line == line]


def check_share(
    folder: Path,
    script: str,
    line: int,
    part: Callable[[OpLine], float],
    least: float = 0.0,
    most: float = 1.0,
) -> Ops:
    """Assert that ``part`` ÷ the time of the calls at this line is from ``least`` to ``most``: in
    one run, or else in the median of three, because a stall of the machine in a single call is
    longer than all of the others. Returns what the last run counted."""
    shares: list[float] = []
    for run in "abc":
        (folder / run).mkdir()
        ops = counted(folder / run, script)
        lines = [x for x in ops.lines if x.at.line == line]
        assert lines, f"no call at line {line}"
        shares.append(sum(map(part, lines)) / (sum(x.elapsed_ns for x in lines) or 1.0))
        if run == "a" and least <= shares[0] <= most:
            return ops
    assert least <= statistics.median(shares) <= most, shares
    return ops
