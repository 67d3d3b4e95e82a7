"""The history as JSON: its series, each with its records and the changes found in them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tdiag.gate.history import Series
from tdiag.gate.shifts import shifts
from tdiag.report.page import Page


def render(found: Sequence[Series], page: Page) -> str:
    """``series``: of each its ``records`` as in the file, and its ``changes``, which index them."""
    plain = [
        {
            **msgspec.to_builtins(one),
            "changes": msgspec.to_builtins(shifts([r.step_ns or 0.0 for r in one.records])),
        }
        for one in found
    ]
    return msgspec.json.format(msgspec.json.encode({"series": plain}), indent=2).decode() + "\n"
