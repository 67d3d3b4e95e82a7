"""What fixed twins saved of the predicted gain at best, from the recorded runs in this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planted.cases import CASES

from constants import Figures, measures

HERE = Path(__file__).resolve().parents[1]
FINAL_SEED = "2-"  # nothing is fitted to its cases


@measures(thresholds__REPLACED_LOW_FRAC="least")
def replaced() -> Figures:
    """One tensor call for Python's work on a batch: lists, tables, collating sample by sample."""
    return _saved({"TD206", "TD207", "TD210"})


def _saved(codes: set[str]) -> Figures:
    """Case → the twin's saving ÷ the predicted one at best, as shares of the step; of cases whose
    leading finding is one of these."""
    cases = {case.name: case for case in CASES}
    found = {}
    for row in _rows("accuracy.jsonl"):
        cures = cases[row["name"]].waste.twin or cases[row["name"]].waste.codes
        first = next((code for code in row["codes"] if code in cures), None)
        if row.get("predicted") and "measured" in row and first in codes:
            found[row["name"]] = _share(row["measured"]) / _share(row["predicted"][1])
    for row in _rows("drawn.jsonl"):
        lead = next((f for f in row.get("findings", ()) if f["fix"] and f["speedup"]), None)
        fits = lead and lead["code"] in codes and "gains" in row
        if lead and fits and not row["name"].startswith(FINAL_SEED):
            gain = row["gains"][lead["fix"][0]]
            found[row["name"]] = _share(gain) / _share(lead["speedup"][1])
    return found


def _rows(name: str) -> list[dict[str, Any]]:
    """The last row of each case."""
    rows = map(json.loads, (HERE / name).read_text().splitlines())
    return list({row["name"]: row for row in rows}.values())


def _share(speedup: float) -> float:
    return 1 - 1 / speedup
