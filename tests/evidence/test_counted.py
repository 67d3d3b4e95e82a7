"""What was counted, of the passes in which it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.from_run import load_run
from tdiag.evidence.torch_ops import Ops

from .making import Run


def test_a_stall_in_one_pass_makes_no_line_dear(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(30, lambda run, number: run.pair(2, 5))
    for number, elapsed in ((1, [200, 1000]), (2, [90_000, 1600])):
        lines = [
            {"at": ["/u/train.py", at, "loss"], "phase": "loss", "calls": 10 * number, "elapsed": t}
            for at, t in zip((7, 8), elapsed, strict=True)
        ]
        run.add("ops", steps=number, lines=lines, **{"pass": number})
    ops = load_run(run.write()).get(Ops)
    assert ops is not None
    assert {line.at.line: line.elapsed_ns for line in ops.lines} == pytest.approx({7: 200, 8: 800})
