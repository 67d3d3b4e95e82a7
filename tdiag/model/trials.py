"""The results of trials: the output of ``tdiag try --json``, and ``trials.json`` of a run."""

from __future__ import annotations

from typing import Literal

import msgspec

from tdiag.model.place import Place

SCHEMA_VERSION = 1

Answer = Literal["faster", "slower", "no effect", "unclear", "not applied", "failed"]
Numbers = Literal["", "identical", "rounding", "like its own", "different"]


class Applied(msgspec.Struct, frozen=True, omit_defaults=True):
    """The effect of a named change at one place. ``at``: the line whose object or call it changed
    (line 0: set for the whole script), None if only libraries called it. ``variable``: a module's
    name there. ``refused``: something else made there was not changed."""

    change: str
    at: Place | None
    variable: str = ""
    refused: bool = False


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """``change``: as ``tdiag try --set`` takes it, or the name of a patch; several joined by " + ".
    ``speedup``: step time without ÷ with the change, ``low`` to ``high`` its 95 % interval over all
    interim tests; 0 if nothing was measured. ``step``: the ``typical`` (median) step or the
    ``mean`` one, which includes work that only some steps do. Times in ns. ``extra_start_ns``: how
    much longer the start took, once. ``losses``: comparison of both sides, "" if none were seen or
    the training is not meant to go on; ``numbers``: how similar they are (``like its own``: they
    differ no more than the untouched script's own losses do from run to run). ``why``: it did not
    apply or failed. ``did``: what was changed, by the probe's own record, and ``applied``: where;
    empty if there is more than the record can hold."""

    change: str
    ceiling: bool
    safety: str
    answer: Answer
    speedup: float = 0.0
    low: float = 0.0
    high: float = 0.0
    step: Literal["typical", "mean"] = "typical"
    without_ns: float = 0.0
    with_ns: float = 0.0
    extra_start_ns: float = 0.0
    peak_without_bytes: int | None = None
    peak_with_bytes: int | None = None
    losses: str = ""
    numbers: Numbers = ""
    why: str = ""
    did: tuple[str, ...] = ()
    applied: tuple[Applied, ...] = ()
    groups: int = 0
    turns: int = 0

    @property
    def low_frac(self) -> float:
        """The share of the step that is certainly saved; below 0 for a loss."""
        return 1 - 1 / self.low

    @property
    def high_frac(self) -> float:
        return 1 - 1 / self.high


class Edit(msgspec.Struct, frozen=True):
    """Replaced lines of a file: ``lines`` of them from ``line`` on (from 1; 0 lines: insert before
    that line). ``text`` includes its line ends."""

    file: str
    line: int
    lines: int
    text: str


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """The winning changes as an edit of the user's own files. ``diff``: unified, as `git apply`
    takes it in ``root``; bytes that are not UTF-8 are lone surrogates in it. Empty if none is
    offered: ``why`` gives the reason. ``made``: the changes in it, ``by_hand``: the remaining ones,
    in words. ``measured``: the patched program compared with the untouched one. ``file``: where it
    was written, empty if that failed."""

    diff: str = ""
    root: str = ""
    file: str = ""
    made: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    measured: Tried | None = None
    why: str = ""


class Trials(msgspec.Struct, frozen=True, kw_only=True):
    """``together``: the winners, measured at once; None if there were fewer than two. ``untried``:
    not reached within the time budget. ``patch``: None if none was requested."""

    schema_version: int = SCHEMA_VERSION
    command: str
    tried: tuple[Tried, ...]
    together: Tried | None = None
    untried: tuple[str, ...] = ()
    patch: Patch | None = None
    notes: tuple[str, ...] = ()
    tdiag: str = ""

    @property
    def all(self) -> tuple[Tried, ...]:
        """Every trial; the combined trial of the winners comes last."""
        return (*self.tried, *([self.together] if self.together else []))
