"""What is known of a training framework."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LoggingPart:
    """Functions of a framework that write logs. ``name``: as its users call the part. ``frames``:
    matches ``path/to/file.py:function`` of each of these functions; samplers may put the class in
    front of the function. ``fix``: how to run the part less often, as in :class:`Framework`."""

    name: str
    frames: re.Pattern[str]
    fix: str


@dataclass(frozen=True)
class Framework:
    """``package``: top-level name of the module that calls ``optimizer.step()``. ``name``: as its
    users call it. ``fixes``: by rule code, the change in its terms, with ``{value}`` for the number
    that the fix sets; no final stop. ``logging``: its parts that write logs. ``evaluates``: matches
    ``path/to/file.py:function`` of what runs its evaluation, metrics included; ``collects``: of
    what collects the outputs of all its batches; ``prepares``: of what asks the user's code for the
    training data. ``follows``: the names of the user's functions that it calls after each step.
    ``runs``: its method that trains, as the script calls it."""

    package: str
    name: str
    fixes: Mapping[str, str]
    logging: tuple[LoggingPart, ...] = ()
    evaluates: re.Pattern[str] | None = None
    collects: re.Pattern[str] | None = None
    prepares: re.Pattern[str] | None = None
    follows: frozenset[str] = frozenset()
    runs: str = ""
