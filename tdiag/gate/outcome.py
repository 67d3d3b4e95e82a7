"""The result of a check: everything in its reports, and the output of ``--format json``."""

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
    """``ratio``: step time now ÷ before, ``low`` to ``high`` its interval (95 % over all tests),
    ``p_slower`` of a rank test. The typical step is the median; ``mean_*`` is the mean step's,
    which includes work that only some steps do. ``answer``: what both say about the threshold.
    ``groups``: of fresh processes, ``turns``: of each side in total. ``how``: the method of
    comparison, in words. ``stored_ns``: the step in the baseline file, for drawing a history."""

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
    """Per step, for one of the user's lines. ``text``: the line itself, ``place``: its present
    place (None: it is gone), ``in_diff``: its file differs from the other side's."""

    text: str
    place: Place | None
    before: float
    now: float
    in_diff: bool = False


class CounterChange(msgspec.Struct, frozen=True, kw_only=True):
    """A work counter that changed, per step unless its name says otherwise. ``failing``: it grew by
    more than the tolerance."""

    name: str
    unit: Literal["count", "bytes"]
    before: float
    now: float
    failing: bool
    lines: tuple[LineChange, ...] = ()

    @property
    def what(self) -> str:
        """Its name, with the unit that it is counted per."""
        own = self.name.endswith("batch") or self.name.startswith("peak ")
        return self.name if own else f"{self.name} per step"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """``threshold``: the slow-down of the step that fails, 0.05 = 5 %; ``tolerance``: of counters.

    ``reasons``: why it regressed or is undecided, most decisive first. ``step`` None: its time was
    not compared, ``why_no_step`` says why. ``components``: of the budget, ns per step, largest
    change first. ``side_costs``: time until warm (ns), peak memory (bytes). ``findings``: rules
    that fire now but did not before. ``settle``: what would decide an open question of time.
    ``machine``: the one it ran on,
    "" for runs from different times."""

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
