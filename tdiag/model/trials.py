"""What trials found: what ``tdiag try --json`` prints, and ``trials.json`` of a run holds."""

from __future__ import annotations

from typing import Literal

import msgspec

from tdiag.model.place import Place

SCHEMA_VERSION = 1

Answer = Literal["faster", "slower", "no effect", "unclear", "not applied", "failed"]
Numbers = Literal["", "identical", "rounding", "like its own", "different"]


class Applied(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named change had an effect. ``at``: on what was made or called at this line (line 0: set
    for the whole script), None where only libraries called. ``variable``: what it is called there,
    of a module. ``refused``: something else that was made there was left as it is."""

    change: str
    at: Place | None
    variable: str = ""
    refused: bool = False


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """``change``: as ``tdiag try --set`` takes it, or the name of a patch; several with " + "
    between them. ``speedup``: step time without ÷ with the change, ``low`` to ``high`` its 95 %
    interval, over all interim tests; 0 where nothing was measured. ``step``: which step: the
    ``typical`` (median) or the ``mean`` one, which holds what only some steps do. Times in ns.
    ``extra_start_ns``: how much longer until it was warm, once. ``losses``: of both sides compared,
    "" where none was seen or the training is not meant to go on; ``numbers``: how alike they are
    (``like its own``: they differ no more than those of the untouched script do from run to run).
    ``why``: it did not apply or failed. ``did``: what was changed, by the probe's own record, and
    ``applied`` where; empty where there is more than the record holds."""

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
        """The share of the step that is surely saved; below 0 for a loss."""
        return 1 - 1 / self.low

    @property
    def high_frac(self) -> float:
        return 1 - 1 / self.high


class Edit(msgspec.Struct, frozen=True):
    """Lines of a file replaced: ``lines`` of them from ``line`` on (from 1; 0 lines: in front of
    that line). ``text`` has its line ends."""

    file: str
    line: int
    lines: int
    text: str


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """What won as a change of the user's own files. ``diff``: unified, as `git apply` takes it in
    ``root``; bytes that are not UTF-8 are lone surrogates in it. Empty where none is offered:
    ``why`` says it. ``made``: the changes in it, ``by_hand``: what is left, in words. ``measured``:
    the patched program against the untouched one. ``file``: where it was written, empty where that
    failed."""

    diff: str = ""
    root: str = ""
    file: str = ""
    made: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    measured: Tried | None = None
    why: str = ""


class Trials(msgspec.Struct, frozen=True, kw_only=True):
    """``together``: those that won, measured at once; None where fewer than two did. ``untried``:
    not reached within the time budget. ``patch``: None where none was asked for."""

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
        """Every trial; those that won, measured together, last."""
        return (*self.tried, *([self.together] if self.together else []))
