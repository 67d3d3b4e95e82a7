"""The history file: one line of JSON per check, appended, for step times over commits.

A line never changes: branches merge with git's ``merge=union``, and a crash while writing loses
only the line that was being written.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from tdiag.errors import RunError
from tdiag.gate.outcome import Outcome, Verdict
from tdiag.gate.revision import Head

VERSION = 1
NAME = "tdiag-history.jsonl"


class CheckRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a check. ``unix``: when, in seconds. ``dirty``: the working tree differed from
    ``commit`` ("" outside a repository).

    ``step_ns`` is comparable over time depending on ``kind``. "baseline": the baseline's step times
    the ratio, which excludes the machine's drift. "revision": the time as measured. ``low_ns`` to
    ``high_ns``: the interval of the former. ``ratio``: relative to what the check compared with.
    ``baseline_ns``: a different value shows that the baseline was rewritten.
    """

    tdiag_history: int = msgspec.field(default=VERSION)
    unix: int
    commit: str
    subject: str
    dirty: bool = False
    command: str
    kind: Literal["baseline", "revision"]
    against: str
    machine: str
    verdict: Verdict
    step_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    ratio: float | None = None
    baseline_ns: float | None = None

    @property
    def label(self) -> str:
        """``1a2b3c4d5e+``: the commit, with a plus if uncommitted changes ran, too."""
        return (self.commit[:10] + "+" * self.dirty) or "no commit"


class _HistoryVersion(msgspec.Struct):
    tdiag_history: int = 0


@dataclass(frozen=True)
class Series:
    """Checks with comparable step times, by time; all have one."""

    command: str
    kind: Literal["baseline", "revision"]
    machine: str
    records: Sequence[CheckRecord]

    @property
    def title(self) -> str:
        return f"{self.command} on {self.machine}" if self.machine else self.command

    @property
    def how(self) -> str:
        """How its times were measured."""
        if self.kind == "baseline":
            return "checks with a baseline: step times relative to it, machine drift removed"
        return "checks with a revision: step times as measured, machine drift included"


def record_of(outcome: Outcome, kind: Literal["baseline", "revision"], head: Head) -> CheckRecord:
    """The line of a check that has just ended."""
    step = outcome.step
    times: dict[str, Any] = {}
    if step and kind == "baseline":
        ratios = {"step_ns": step.ratio, "low_ns": step.low, "high_ns": step.high,
                  "baseline_ns": 1.0}  # fmt: skip
        if step.stored_ns:
            times = {name: round(step.stored_ns * ratio, 1) for name, ratio in ratios.items()}
    elif step:
        times = {"step_ns": round(step.now_ns, 1)}
    return CheckRecord(
        unix=int(time.time()), commit=head.commit, subject=head.subject,
        dirty=bool(head.uncommitted),
        command=outcome.command, kind=kind, against=outcome.against, machine=outcome.machine,
        verdict=outcome.verdict, ratio=round(step.ratio, 5) if step else None, **times,
    )  # fmt: skip


def append(path: Path, record: CheckRecord) -> None:
    """Append in one write, so that simultaneous checks do not mix their lines. Raises RunError if
    it cannot be written."""
    line = msgspec.json.encode({"tdiag_history": VERSION, **msgspec.to_builtins(record)}) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":  # a truncated line from a crash stays separate
                    line = b"\n" + line
            file.write(line)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}", "name another file") from None


def read(path: Path) -> tuple[list[CheckRecord], int]:
    """The checks by time, and how many lines are not checks.

    Raises RunError if the file does not exist or nothing in it can be read, and for lines of a
    newer tdiag.
    """
    try:
        lines = [line for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}",
                       f"a check writes it: tdiag check … --history {path}") from None  # fmt: skip
    records = [record for line in lines if (record := _record(line, path))]
    if not records:
        raise RunError(f"{path} contains no check of tdiag",
                       f"a check appends one: tdiag check … --history {path}")  # fmt: skip
    return sorted(records, key=lambda record: record.unix), len(lines) - len(records)


def _record(line: bytes, path: Path) -> CheckRecord | None:
    try:
        if msgspec.json.decode(line, type=_HistoryVersion).tdiag_history > VERSION:
            raise RunError(f"{path} contains lines of a newer tdiag", "upgrade tdiag")
        return msgspec.json.decode(line, type=CheckRecord)
    except msgspec.MsgspecError:
        return None


def series(records: Sequence[CheckRecord], last: int) -> list[Series]:
    """The ``last`` checks of each script, kind of check and machine; the most recent series is
    first. Checks without a step time are left out."""
    found: dict[tuple[str, Literal["baseline", "revision"], str], list[CheckRecord]] = {}
    for record in records:
        if record.step_ns is not None:
            key = (record.command, record.kind, record.machine)
            found.setdefault(key, []).append(record)
    latest = sorted(found.items(), key=lambda item: -item[1][-1].unix)
    return [Series(*key, records=mine[-last:]) for key, mine in latest]
