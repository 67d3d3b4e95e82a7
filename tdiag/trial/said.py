"""What the probe of a trial wrote down: whether a change applied, and the losses."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdiag.probe.trial.base import MOST_SAID
from tdiag.probe.wire import events_files
from tdiag.units import plural

# Float32 sums in another order differ by about √n·2⁻²⁴ of their size, some 1e-5 for n = 10⁴, and
# training makes differences grow. Heuristic: below this share they count as rounding.
ROUNDING = 1e-3
BROKEN = "losses become NaN or infinite"


@dataclass(frozen=True)
class Said:
    """``answers``: calls answered in measured steps; None where the change answers none."""

    applied: tuple[str, ...]
    refused: tuple[str, ...]
    unsettled: tuple[str, ...]
    answers: int | None


def heard(run_dirs: Sequence[Path]) -> Said:
    """Of the treatment's processes, in all groups."""
    records = [record for run_dir in run_dirs for record in _records(run_dir)]
    answers = [int(r["n"]) for r in records if r["state"] == "answered"]

    def of(state: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r["what"] for r in records if r["state"] == state))[:MOST_SAID]

    return Said(of("applied"), of("refused"), of("unsettled"), sum(answers) if answers else None)


def compared(without: Sequence[Path], with_it: Sequence[Path]) -> str:
    """The losses of both sides, step by step from the same seeds, in words; "" where none was seen.

    How much the script's own losses differ from run to run is the measure where they do.
    """
    plain, changed = [_losses(d) for d in without], [_losses(d) for d in with_it]
    pairs = [(a, b) for a, b in zip(plain, changed, strict=True) if a and b]
    if not pairs:
        return ""
    steps = min(min(len(a), len(b)) for a, b in pairs)
    if any(not math.isfinite(x) for _, b in pairs for x in b[:steps]) and all(
        math.isfinite(x) for a, _ in pairs for x in a[:steps]
    ):
        return BROKEN
    itself = max((_difference(plain[0], other) for other in plain[1:] if other), default=0.0)
    apart = max(_difference(a, b) for a, b in pairs)
    over = f"over {plural(steps, 'step')}"
    if apart == 0:
        return f"losses identical {over}"
    if apart <= ROUNDING:
        return f"losses equal within {apart:.0e} {over}"
    if itself > 0:
        return (f"losses differ by {apart:.1%} {over}, those of the untouched script from run to"
                f" run by {itself:.1%}")  # fmt: skip
    return f"losses differ by {apart:.1%} {over}"


def _difference(a: list[float], b: list[float]) -> float:
    """The largest, as a share of the larger value."""
    pairs = [(x, y) for x, y in zip(a, b, strict=False) if math.isfinite(x) and math.isfinite(y)]
    return max((abs(x - y) / max(abs(x), abs(y)) for x, y in pairs if x != y), default=0.0)


def _losses(run_dir: Path) -> list[float]:
    for record in _records(run_dir):
        if record["state"] == "losses":
            return [float(value) for value in record["values"]]
    return []


def _records(run_dir: Path) -> list[dict[str, Any]]:
    found = []
    for file in events_files(run_dir):
        found += [json.loads(line) for kind, line in file.read(last=True) if kind == "trial"]
    return found
