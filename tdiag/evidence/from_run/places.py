"""Places in the user's code: from records, and among the frames of a sampled stack."""

from __future__ import annotations

import re

from tdiag.evidence.from_run.records import At
from tdiag.evidence.kinds import Location

NOWHERE = Location(file="", line=0)  # library code called it; no line of the user's own is known

_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3[^/]*/|/tdiag/probe/|/tdiag_probe/")


def location(at: At) -> Location | None:
    return Location(file=at[0], line=at[1], function=at[2]) if at else None


def is_user_file(name: str) -> bool:
    """False for torch, installed packages, the standard library, tdiag's probe and built-ins."""
    return bool(name) and not name.startswith("<") and not _LIBRARY.search(name)
