"""How far the share of backward that is measured for a line differs from run to run."""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from pathlib import Path

from planted.cases import CASES, Case
from planted.running import diagnose, write

from constants import Figures, measures
from tdiag.evidence.from_run import load_run
from tdiag.evidence.torch_ops import Ops

RUNS, LEAST = 3, 0.05
PLANTED = ("columns-plain", "gathered-functions", "outer-config", "repeated-trainer", "cells-plain")


@measures(call_parts__MEASURED_ERROR_FRAC="between")
def between_runs() -> Figures:
    """Of each line with a noticeable part of backward: the largest difference from the median share
    ÷ the smaller of this share and the rest."""
    figures = {}
    for case in (case for case in CASES if case.name in PLANTED):
        with tempfile.TemporaryDirectory() as folder:
            runs = [_shares(case, Path(folder) / str(run)) for run in range(RUNS)]
        middle = {line: statistics.median(run.get(line, 0.0) for run in runs) for line in runs[0]}
        for line, share in middle.items():
            if LEAST < share < 1 - LEAST:
                off = max(abs(run.get(line, 0.0) - share) for run in runs)
                figures[f"{case.name}, {line[0]}:{line[1]}"] = off / min(share, 1 - share)
    return figures


def _shares(case: Case, folder: Path) -> dict[tuple[str, int], float]:
    """By file and line."""
    slow = write(case.files(False), folder)
    diagnose(case, slow)
    ops = load_run(slow / "run").get(Ops)
    assert ops
    spent: Counter[tuple[str, int]] = Counter()
    for line in ops.lines:
        spent[Path(line.at.file).name, line.at.line] += round(line.backward.get("elapsed_ns", 0.0))
    return {line: ns / ops.measured_backward_ns for line, ns in spent.items()}
