"""What trials found: what ``tdiag try --json`` prints, and ``trials.json`` of a run holds."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA_VERSION = 1

Answer = Literal["faster", "slower", "no effect", "unclear", "not applied", "failed"]


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """``change``: as ``tdiag try --set`` takes it, or the name of a patch; several with " + "
    between them. ``speedup``: step time without ÷ with the change, ``low`` to ``high`` its 95 %
    interval, over all looks; 0 where nothing was measured. ``step``: which step that is of, the
    ``typical`` (median) or the ``mean`` one, which holds what only some steps do. Times in ns.
    ``extra_start_ns``: how much longer until it was warm, once. ``losses``: of both sides compared,
    "" where none was seen or the training is not meant to go on. ``why``: it did not apply or
    failed. ``did``: what was changed, by the probe's own record."""

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
    why: str = ""
    did: tuple[str, ...] = ()
    groups: int = 0
    turns: int = 0

    @property
    def low_frac(self) -> float:
        """The share of the step that is surely saved; below 0 for a loss."""
        return 1 - 1 / self.low

    @property
    def high_frac(self) -> float:
        return 1 - 1 / self.high


class Trials(msgspec.Struct, frozen=True, kw_only=True):
    """``together``: those that won, measured at once; None where fewer than two did. ``untried``:
    for which the time did not suffice."""

    schema_version: int = SCHEMA_VERSION
    command: str
    tried: tuple[Tried, ...]
    together: Tried | None = None
    untried: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tdiag: str = ""

    @property
    def all(self) -> tuple[Tried, ...]:
        """Those that won together last."""
        return (*self.tried, *([self.together] if self.together else []))
