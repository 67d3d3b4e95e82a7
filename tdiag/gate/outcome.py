"""What a check found: all that its reports say, and what ``--format json`` prints."""

from __future__ import annotations

from typing import Literal

import msgspec

from tdiag.duel.estimate import Answer
from tdiag.model.comparison import Difference
from tdiag.model.diagnosis import Finding
from tdiag.model.place import Place

SCHEMA_VERSION = 1

Verdict = Literal["pass", "regressed", "inconclusive"]
EXIT_CODES: dict[Verdict, int] = {"pass": 0, "regressed": 1, "inconclusive": 3}


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """``ratio`` = step time now ÷ before, ``low`` to ``high`` its interval (95 % over all tests),
    ``p_slower`` of a rank test. The typical step is the median; ``mean_*`` is that of the mean
    step, which holds what only some steps do. ``answer``: what both say of the threshold.
    ``groups`` of fresh processes, ``turns`` of each side in all. ``how``: what was done to compare,
    in words. ``stored_ns``: the step that the baseline file keeps, by which a history is drawn."""

    answer: Answer
    before_ns: float
    now_ns: float
    ratio: float
    low: float
    high: float
    p_slower: float
    mean_ratio: float
    mean_low: float
    mean_high: float
    groups: int
    turns: int
    how: str
    stored_ns: float | None = None


class LineChange(msgspec.Struct, frozen=True, kw_only=True):
    """Per step, of one line of the user's. ``text``: the line itself, ``place`` where it stands
    now (None: it is gone), ``in_diff``: its file differs from the other side's."""

    text: str
    place: Place | None
    before: float
    now: float
    in_diff: bool = False


class CounterChange(msgspec.Struct, frozen=True, kw_only=True):
    """A work counter that moved, per step unless its name says what else. ``failing``: it grew by
    more than the tolerance."""

    name: str
    unit: Literal["count", "bytes"]
    before: float
    now: float
    failing: bool
    lines: tuple[LineChange, ...] = ()

    @property
    def what(self) -> str:
        """Its name with what it is counted by."""
        own = self.name.endswith("batch") or self.name.startswith("peak ")
        return self.name if own else f"{self.name} per step"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """``threshold``: the slow-down of the step that fails, 0.05 = 5 %; ``tolerance``: of counters.

    ``reasons``: what decided that it regressed, or why it is open, most decisive first. ``step``
    None: its time was not compared, ``why_no_step`` says why. ``components``: of the budget, ns
    per step, largest change first. ``side_costs``: time until warm (ns), peak memory (bytes).
    ``findings``: rules that fire now and did not before. ``settle``: what would answer an open
    question of time. ``machine``: the one it ran on, "" of runs of another time."""

    schema_version: int = SCHEMA_VERSION
    verdict: Verdict
    command: str
    against: str
    threshold: float
    tolerance: float
    reasons: tuple[str, ...]
    step: StepChange | None
    why_no_step: str = ""
    components: tuple[Difference, ...] = ()
    side_costs: tuple[Difference, ...] = ()
    counters: tuple[CounterChange, ...] = ()
    findings: tuple[Finding, ...] = ()
    changed_files: tuple[str, ...] = ()
    improved: bool = False
    settle: str = ""
    notes: tuple[str, ...] = ()
    machine: str = ""
    tdiag: str = ""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]
