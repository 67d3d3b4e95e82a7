"""The baseline file: the work of a script's step, with which later checks are compared.

Sorted JSON with one value per line, so that diffs are readable and branches merge; one entry per
script and arguments. Written atomically: a crash keeps the old file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from tdiag.errors import RunError
from tdiag.gate.counters import Counter, Unit
from tdiag.gate.fingerprint import Hardware
from tdiag.launch import rundir

VERSION = 2


class StoredCounter(msgspec.Struct, frozen=True, kw_only=True):
    """Like :class:`tdiag.gate.counters.Counter`; ``lines``: per step, by line."""

    unit: Unit
    low: float
    high: float
    lines: dict[str, float] = {}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One script with its arguments. ``commit``: what was checked out, which a check runs again; ""
    outside a repository. ``uncommitted``: tracked files that differed from it, so the commit is not
    what was measured. ``step_ns``: the median clean step of one run, only for drawing a history; 0
    if no step was clean. ``rules``: codes that fired."""

    command: str
    commit: str
    uncommitted: list[str]
    machine: Hardware
    max_regression: float
    max_growth: float
    step_ns: float
    counters: dict[str, StoredCounter]
    rules: list[str]
    tdiag: str


class _BaselineFile(msgspec.Struct, frozen=True):
    tdiag_baseline: int
    scripts: dict[str, Entry] = {}


class _BaselineVersion(msgspec.Struct):
    tdiag_baseline: int


def read(path: Path) -> dict[str, Entry]:
    """The entries by command; empty if there is no file yet.

    Raises RunError for a file that is not a baseline, is broken, or was written by a tdiag with
    another version of it.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from None
    try:
        version = msgspec.json.decode(raw, type=_BaselineVersion).tdiag_baseline
        if version > VERSION:
            raise RunError(f"{path} was written by a newer tdiag (baseline version {version})",
                           "upgrade tdiag, or delete it and rewrite it: --update")  # fmt: skip
        if version < VERSION:
            raise RunError(f"{path} was written by an older tdiag (baseline version {version})",
                           "delete it and rewrite it: --update")  # fmt: skip
        return msgspec.json.decode(raw, type=_BaselineFile).scripts
    except msgspec.MsgspecError as error:
        conflict = b"<<<<<<<" in raw
        raise RunError(
            f"{path} is not a baseline: "
            + ("it contains a merge conflict" if conflict else str(error)),
            "keep either side, or delete it and rewrite it: --update",
        ) from None


def write(path: Path, entries: dict[str, Entry]) -> None:
    """Replace the file. Raises RunError if it cannot be written; the old one is kept then."""
    value = {"tdiag_baseline": VERSION, "scripts": msgspec.to_builtins(entries)}
    text = json.dumps(_rounded(value), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        rundir.write_text(path, text)
    except (OSError, RunError) as error:
        why = error.message if isinstance(error, RunError) else error.strerror
        raise RunError(f"cannot write {path}: {why}", "name another file") from None


def stored(counter: Counter) -> StoredCounter:
    lines = {key: line.per_step for key, line in counter.lines.items()}
    return StoredCounter(unit=counter.unit, low=counter.low, high=counter.high, lines=lines)


def _rounded(value: Any) -> Any:
    """Numbers with six digits, enough to distinguish any two that differ."""
    if isinstance(value, float):
        short = float(f"{value:.6g}")
        return int(short) if short.is_integer() else short
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return value
