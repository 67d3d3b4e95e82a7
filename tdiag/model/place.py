"""A line of source."""

from __future__ import annotations

import msgspec

Spot = tuple[str, int]  # file and line


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """``file`` is absolute unless a trace recorded it as relative; ``line`` counts from 1, 0 =
    unknown. ``function``: the enclosing function, empty if unknown."""

    file: str
    line: int
    function: str = ""

    @property
    def spot(self) -> Spot:
        """File and line: sources name the function differently (``forward``, ``Net.forward``)."""
        return self.file, self.line
