"""The result of `tdiag analyze --against`: two traces side by side.

The shape is public and versioned (``COMPARISON_VERSION``, ``tdiag/report/comparison.schema.json``).
"""

from __future__ import annotations

from typing import Literal

import msgspec

COMPARISON_VERSION = 1


class Difference(msgspec.Struct, frozen=True):
    """One number of two traces, per step unless ``name`` is a peak. ``unit``: ns, bytes, count.
    ``at_most``: that side lists only larger values, so its true value is this or less."""

    name: str
    unit: Literal["ns", "bytes", "count"]
    before: float
    after: float
    at_most: Literal["", "before", "after"] = ""

    @property
    def difference(self) -> float:
        """after − before; if one side is ``at_most``, the smallest possible difference."""
        return self.after - self.before


class ChangeTable(msgspec.Struct, frozen=True, kw_only=True):
    """Noticeable differences, largest first. ``why``: why nothing could be compared; without it, no
    rows mean no noticeable difference."""

    title: str
    rows: tuple[Difference, ...] = ()
    why: str = ""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two traces side by side. ``step``: None if either has none. Notes: what the reader must know
    about each trace."""

    schema_version: int = COMPARISON_VERSION
    verdict_before: str
    verdict_after: str
    step: Difference | None
    tables: tuple[ChangeTable, ...]
    notes_before: tuple[str, ...] = ()
    notes_after: tuple[str, ...] = ()
