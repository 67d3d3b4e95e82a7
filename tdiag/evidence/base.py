"""What every evidence kind is made of; :mod:`tdiag.evidence.kinds` passes both on."""

from __future__ import annotations

import msgspec


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every evidence kind; a rule names the kinds it needs in ``check``'s signature."""


class Location(Kind, frozen=True, kw_only=True):
    """A place in the user's own code. ``file`` is absolute; ``line`` counts from 1, 0 = unknown."""

    file: str
    line: int
    function: str = ""
