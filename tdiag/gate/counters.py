"""Work counters: how much a step does, independent of other programs on the machine.

Counted per step in the windows of a short run (probe/plan.py, COUNTS). A count that varies from
step to step, or from batch to batch, is kept as a range: it has changed only if the ranges do not
overlap. Lines are identified by file, function and text, because their numbers change with every
edit above them; if the old source is gone (two finished runs), by file and function.
"""

from __future__ import annotations

import linecache
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tdiag.diagnose.trace_differences import MINOR_BYTES, counted
from tdiag.evidence.from_run.counted_records import CallsRecord, OpsRecord
from tdiag.evidence.from_run.event_files import Process, lead_of, read_events
from tdiag.evidence.from_run.records import (
    At,
    FetchRecord,
)
from tdiag.evidence.store import Evidence
from tdiag.model.place import Place

Unit = Literal["count", "bytes"]

TORCH_CALLS = "torch calls"
FROM_PYTHON = "tensors made of Python data"
PYTHON_CALLS = "Python calls"
BATCH_BYTES = "bytes of a batch"
READ_BYTES = "bytes read for a batch"
FILES_OPENED = "files opened for a batch"
SYNC_LINES = "synchronisations of the device by line"
# Conversions to Python values as the user writes them; each waits for the device.
CONVERSIONS = {"item": ".item()", "bool": "bool(tensor)", "float": "float(tensor)",
               "int": "int(tensor)", "tolist": ".tolist()", "numpy": ".numpy()", "cpu": ".cpu()",
               "nonzero": "nonzero()", "print": "prints of a tensor"}  # fmt: skip
# A line of logging adds one per step; a copy of fewer bytes costs only its launch.
LEAST: dict[Unit, float] = {"count": 1.0, "bytes": float(MINOR_BYTES)}


@dataclass(frozen=True)
class LineCount:
    """``per_step``: of one of the user's lines; ``key`` survives edits elsewhere in the file."""

    key: str
    per_step: float
    place: Place | None = None


@dataclass
class Counter:
    """``low`` to ``high`` per step (per batch if its name says so), over the counted windows."""

    name: str
    unit: Unit
    low: float
    high: float
    lines: dict[str, LineCount] = field(default_factory=dict)


@dataclass(frozen=True)
class Moved:
    """A counter that differs. ``lines``: the lines that grew (or shrank) most, before → now; empty
    if the counter is not counted by line."""

    name: str
    unit: Unit
    before: float
    now: float
    lines: tuple[tuple[LineCount, float], ...] = ()  # (the line, per step before)

    @property
    def grew(self) -> bool:
        return self.now > self.before


def counters(
    run_dir: Path, evidence: Evidence, root: Path, source: bool = True
) -> dict[str, Counter]:
    """Every counter of a run, by name; counters whose window did not finish are absent.

    ``root``: files are named relative to it. ``source``: the files are unchanged since the run.
    """
    found: dict[str, Counter] = {}
    processes = read_events(run_dir)
    if lead := lead_of(processes):
        for counter in (
            *_ops(lead.all(OpsRecord), root, source),
            *_calls(lead),
            *_fetches(processes),
        ):
            found[counter.name] = counter
    for name, (unit, value) in counted(evidence).items():
        found[name] = Counter(name, unit, value, value)
    return found


def compare(
    before: Mapping[str, Counter], now: Mapping[str, Counter], tolerance: float
) -> list[Moved]:
    """Counters of both sides whose ranges differ by more than ``tolerance`` (a share of the earlier
    one) and ``LEAST``. Growth comes first, the largest factor before others."""
    moved = []
    for name in before.keys() & now.keys():
        a, b = before[name], now[name]
        grew = b.low > a.high * (1 + tolerance) + LEAST[a.unit]
        shrank = b.high < a.low * (1 - tolerance) - LEAST[a.unit]
        if grew or shrank:
            values = (a.high, b.low) if grew else (a.low, b.high)
            moved.append(Moved(name, a.unit, *values, _lines(a, b, grew)))
    return sorted(moved, key=lambda m: (not m.grew, m.before / m.now if m.now else 1.0, m.name))


def _lines(before: Counter, now: Counter, grew: bool) -> tuple[tuple[LineCount, float], ...]:
    keys = before.lines.keys() | now.lines.keys()
    pairs = []
    for key in keys:
        a, b = before.lines.get(key), now.lines.get(key)
        line = b or LineCount(key, 0.0, None)
        pairs.append((line, a.per_step if a else 0.0))
    sign = 1 if grew else -1
    pairs = [(line, was) for line, was in pairs if (line.per_step - was) * sign >= LEAST["count"]]
    return tuple(sorted(pairs, key=lambda p: (-(p[0].per_step - p[1]) * sign, p[0].key)))


# --- from the records -------------------------------------------------------------------------


def _ops(records: Iterable[OpsRecord], root: Path, source: bool) -> list[Counter]:
    windows = [_window(record, root, source) for record in records if record.steps > 0]
    names = {name for window in windows for name in window}
    return [_over_windows(name, [w.get(name, {}) for w in windows]) for name in sorted(names)]


def _window(record: OpsRecord, root: Path, source: bool) -> dict[str, dict[str, LineCount]]:
    """Counter → line key → line, for one window."""
    values: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    places: dict[str, Place | None] = {}
    most: dict[str, float] = {}  # most calls of one line: if a key is a function, its busiest line
    values[TORCH_CALLS], values[FROM_PYTHON] = defaultdict(float), defaultdict(float)
    for (
        name
    ) in CONVERSIONS.values():  # one that was never seen counts as 0, so a new one is reported
        values[name] = defaultdict(float)
    for line in record.lines:
        key = _key(line.at, root, source)
        if line.calls > most.get(key, -1.0):
            most[key] = line.calls
            places[key] = Place(*line.at) if line.at else None
        values[TORCH_CALLS][key] += line.calls / record.steps
        values[FROM_PYTHON][key] += line.constructions / record.steps
        for kind, number in line.conversions.items():
            if kind in CONVERSIONS:
                values[CONVERSIONS[kind]][key] += number / record.steps
    for at, number in record.syncs or ():
        key = _key(at, root, source)
        places.setdefault(key, Place(*at) if at else None)
        values[SYNC_LINES][key] += number / record.steps
    return {
        name: {key: LineCount(key, n, places[key]) for key, n in by_line.items() if n}
        for name, by_line in values.items()
    }


def _over_windows(name: str, windows: list[dict[str, LineCount]]) -> Counter:
    totals = [sum(line.per_step for line in window.values()) for window in windows]
    lines = {key: line for window in windows for key, line in window.items()}
    return Counter(name, "count", min(totals), max(totals), lines)


def _calls(lead: Process) -> list[Counter]:
    found = [r.total / r.steps for r in lead.all(CallsRecord) if r.total and r.steps > 0]
    return [Counter(PYTHON_CALLS, "count", min(found), max(found))] if found else []


def _fetches(processes: Iterable[Process]) -> list[Counter]:
    """From the batches that were inspected, in workers or not."""
    fetches = [fetch for process in processes for fetch in process.all(FetchRecord)]
    ranges: list[tuple[str, Unit, list[int]]] = [
        (BATCH_BYTES, "bytes", [f.bytes for f in fetches if f.bytes is not None]),
        (READ_BYTES, "bytes", [f.rchar for f in fetches if f.rchar is not None]),
        (FILES_OPENED, "count", [f.opens for f in fetches if f.opens is not None]),
    ]
    return [Counter(n, unit, min(x), max(x)) for n, unit, x in ranges if x]


def _key(at: At, root: Path, source: bool) -> str:
    if at is None:
        return "(library code)"
    file, line, function = at
    path = Path(file)
    shown = str(path.relative_to(root)) if path.is_relative_to(root) else file
    text = linecache.getline(file, line).strip() or str(line) if source else ""
    return f"{shown}: {function}: {text}"
