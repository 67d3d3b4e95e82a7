"""A line of source."""

from __future__ import annotations

import msgspec


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """``file`` is absolute unless a trace holds it relative; ``line`` counts from 1, 0 = unknown.
    ``function``: the one that holds the line, empty where unknown."""

    file: str
    line: int
    function: str = ""

    @property
    def spot(self) -> tuple[str, int]:
        """File and line: sources name the function differently (``forward``, ``Net.forward``)."""
        return self.file, self.line
