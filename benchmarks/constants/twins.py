"""What fixed twins saved of the predicted gain at best, from the recorded runs in this folder.

Rows from before these constants were in use: later ones have them in their predictions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from planted.cases import CASES
from scipy.optimize import brentq

from constants import Figures, measures
from tdiag.diagnose.engine import FREED_FRAC, RUNS_DIFFER_FRAC

HERE = Path(__file__).resolve().parents[1]
FINAL_SEED = "2-"  # nothing is fitted to its cases
WEAK = 1.1  # times as fast: of a smaller gain the noise is a large part


class Twin(NamedTuple):
    """``code``: the rule whose fix the twin makes; ``best``: the high end of its prediction."""

    name: str
    code: str
    measured: float
    best: float


@measures(thresholds__REPLACED_LOW_FRAC="between")
def replaced() -> Figures:
    """The share of the step that the twin saved ÷ the predicted one at best, where one tensor call
    does Python's work on a batch: lists, tables, collating sample by sample."""
    return _saved_of_predicted("TD206", "TD207", "TD210")


@measures(feed__REPEATED_LOW_FRAC="between")
def repeated() -> Figures:
    """The share of the step that the twin saved ÷ that of the work predicted to repeat in each
    epoch."""
    return _saved_of_predicted("TD209")


def _saved_of_predicted(*codes: str) -> Figures:
    twins = [t for t in _twins() if t.code in codes and min(t.measured, t.best) > WEAK]
    return {t.name: _share(t.measured) / _taken(t.best) for t in twins}


@measures(engine__FREED_FRAC="between")
def freed() -> Figures:
    """How much less than the rest of the step at best the twin left, ÷ the share taken away; 0
    where it left more."""
    strong = [twin for twin in _twins() if min(twin.measured, twin.best) > WEAK]
    return {t.name: max(0.0, 1 - t.best / t.measured) / _share(t.best) for t in strong}


@measures(engine__RUNS_DIFFER_FRAC="between")
def differing() -> Figures:
    """By how much the step times of a planted case's bare runs differ, largest ÷ smallest, less
    1."""
    measured = [row for row in _rows("accuracy.jsonl") if "measured" in row]
    runs = {f"{r['name']} {side}": r[side] for r in measured for side in ("slow_ms", "fixed_ms")}
    return {name: max(taken) / min(taken) - 1 for name, taken in runs.items()}


def _twins() -> Iterator[Twin]:
    cases = {case.name: case for case in CASES}
    for row in _rows("accuracy.jsonl"):
        cures = cases[row["name"]].waste.twin or cases[row["name"]].waste.codes
        code = next((code for code in row["codes"] if code in cures), None)
        if code and row.get("predicted") and "measured" in row:
            yield Twin(row["name"], code, row["measured"], row["predicted"][1])
    for row in _rows("drawn.jsonl"):
        lead = next((f for f in row.get("findings", ()) if f["fix"] and f["speedup"]), None)
        if lead and "gains" in row and not row["name"].startswith(FINAL_SEED):
            yield Twin(row["name"], lead["code"], row["gains"][lead["fix"][0]], lead["speedup"][1])


def _rows(name: str) -> list[dict[str, Any]]:
    """The last row of each case."""
    rows = map(json.loads, (HERE / name).read_text().splitlines())
    return list({row["name"]: row for row in rows}.values())


def _taken(best: float) -> float:
    """The share of the step that a prediction takes away at the high end, where the rest gets
    faster by what two runs differ, and by FREED_FRAC × this share."""
    taken = brentq(lambda x: 1 - best * ((1 - x) - _faster(x)), 0.0, 0.999)
    return float(taken)


def _faster(taken: float) -> float:
    rest = 1 - taken
    return math.hypot(FREED_FRAC * rest * taken, RUNS_DIFFER_FRAC * rest)


def _share(speedup: float) -> float:
    return 1 - 1 / speedup
