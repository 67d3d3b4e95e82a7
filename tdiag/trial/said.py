"""What a trial's probe recorded: whether a change applied, and the losses."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tdiag.model.place import Place
from tdiag.model.trials import Applied, Numbers
from tdiag.probe.trial.change import MOST_SAID
from tdiag.probe.wire import events_files
from tdiag.units import plural

# Float32 sums in another order differ by about √n·2⁻²⁴ of their size, about 1e-5 for n = 10⁴, and
# training makes differences grow. Heuristic: smaller shares count as rounding.
ROUNDING = 1e-3
BROKEN = "losses become NaN or infinite"
# Heuristic: the largest of three differences ÷ the largest of two, all with the same spread.
LIKE_ITS_OWN = 2.0


@dataclass(frozen=True)
class Said:
    """``answers``: calls answered in measured steps; None if the change answers none. ``places``:
    where it applied, empty if a process had more places than it may report."""

    applied: tuple[str, ...]
    refused: tuple[str, ...]
    unsettled: tuple[str, ...]
    answers: int | None
    places: tuple[Applied, ...]


class Compared(NamedTuple):
    """The comparison of both sides' losses, as a sentence and as a word."""

    text: str
    numbers: Numbers


def heard(run_dirs: Sequence[Path]) -> Said:
    """The records of the changed processes, in all groups."""
    runs = [_records(run_dir) for run_dir in run_dirs]
    records = [record for run in runs for record in run]
    answers = [int(r["n"]) for r in records if r["state"] == "answered"]

    def of(state: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r["what"] for r in records if r["state"] == state))[:MOST_SAID]

    full = any(len({_what(record) for record in run}) >= MOST_SAID for run in runs)
    return Said(of("applied"), of("refused"), of("unsettled"), sum(answers) if answers else None,
                () if full else _places(records))  # fmt: skip


def _what(record: dict[str, Any]) -> tuple[str, ...]:
    """The texts, without repetitions from several processes."""
    return tuple(str(record.get(name)) for name in ("change", "state", "what", "at"))


def _places(records: list[dict[str, Any]]) -> tuple[Applied, ...]:
    refused = {(r["change"], *r["at"]) for r in records if r["state"] == "refused" and r.get("at")}
    return tuple(dict.fromkeys(
        Applied(r["change"], Place(*r["at"]) if r.get("at") else None, r.get("variable", ""),
                (r["change"], *(r.get("at") or ())) in refused)
        for r in records if r["state"] == "applied"
    ))  # fmt: skip


def compared(without: Sequence[Path], with_it: Sequence[Path]) -> Compared:
    """The losses of both sides, compared step by step from the same seeds; "" if none were seen.

    If the script's own losses differ from run to run, that difference is the yardstick.
    """
    plain, changed = [_losses(d) for d in without], [_losses(d) for d in with_it]
    pairs = [(a, b) for a, b in zip(plain, changed, strict=True) if a and b]
    if not pairs:
        return Compared("", "")
    steps = min(min(len(a), len(b)) for a, b in pairs)
    if any(not math.isfinite(x) for _, b in pairs for x in b[:steps]) and all(
        math.isfinite(x) for a, _ in pairs for x in a[:steps]
    ):
        return Compared(BROKEN, "different")
    itself = max((_difference(plain[0], other) for other in plain[1:] if other), default=0.0)
    apart = max(_difference(a, b) for a, b in pairs)
    over = f"over {plural(steps, 'step')}"
    if apart == 0:
        return Compared(f"losses identical {over}", "identical")
    if apart <= ROUNDING:
        return Compared(f"losses equal within {apart:.0e} {over}", "rounding")
    if itself > 0:
        text = (f"losses differ by {apart:.1%} {over}, those of the untouched script from run to"
                f" run by {itself:.1%}")  # fmt: skip
        return Compared(text, "like its own" if apart <= LIKE_ITS_OWN * itself else "different")
    return Compared(f"losses differ by {apart:.1%} {over}", "different")


def _difference(a: list[float], b: list[float]) -> float:
    """The largest difference, as a share of the larger value or, if that is larger, of the median
    loss: a loss that happens to be near zero says little."""
    pairs = [(x, y) for x, y in zip(a, b, strict=False) if math.isfinite(x) and math.isfinite(y)]
    usual = median(abs(x) for x, _ in pairs) if pairs else 0.0
    return max((abs(x - y) / max(abs(x), abs(y), usual) for x, y in pairs if x != y), default=0.0)


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
