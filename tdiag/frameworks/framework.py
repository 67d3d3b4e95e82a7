"""What is known of a framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Framework:
    """``package``: top-level name of the module that calls ``optimizer.step()``. ``name``: as its
    users call it. ``fixes``: by rule code, the change in its terms, with ``{value}`` for the number
    that the fix sets; no final stop."""

    package: str
    name: str
    fixes: Mapping[str, str]
