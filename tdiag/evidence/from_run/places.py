"""Places in the user's code, from records."""

from __future__ import annotations

from tdiag.evidence.from_run.records import At
from tdiag.model.place import Place

NOWHERE = Place(file="", line=0)  # library code called it; no line of the user's own is known


def location(at: At) -> Place | None:
    return Place(file=at[0], line=at[1], function=at[2]) if at else None
