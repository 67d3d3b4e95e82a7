"""What the probe counted at a line."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

from tdiag.evidence.torch_ops import OpLine, Ops

from .harness import watch_code

AGREE = 0.05  # of the line's time; the tests ask for differences of a tenth and more


def counted(folder: Path, script: str) -> Ops:
    """What the window ``ops`` counted of this script."""
    run = watch_code(folder, script, windows=["baseline", "ops"], profiling=True, short=True)
    assert run.returncode == 0 and run.of("failure") == []
    ops = run.evidence().get(Ops)
    assert ops is not None
    return ops


def at_line(folder: Path, script: str, line: int) -> list[OpLine]:
    """The rows of this line in the window ``ops``. One for each phase."""
    return [x for x in counted(folder, script).lines if x.at.line == line]


def share_of_line(folder: Path, script: str, line: int, part: Callable[[OpLine], float]) -> float:
    """``part`` ÷ the time of the calls at this line: the mean of two runs that agree, or the median
    of three, because a stall of the machine in a single call is longer than all of the others."""
    shares: list[float] = []
    for run in "abc":
        if len(shares) == 2 and abs(shares[0] - shares[1]) < AGREE:
            break
        (folder / run).mkdir()
        lines = at_line(folder / run, script, line)
        shares.append(sum(map(part, lines)) / (sum(x.elapsed_ns for x in lines) or 1.0))
    return statistics.median(shares)
