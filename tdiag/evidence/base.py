"""What every evidence kind is made of; :mod:`tdiag.evidence.kinds` passes both on."""

from __future__ import annotations

import re

import msgspec

_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3[^/]*/|/tdiag/probe/|/tdiag_probe/")


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every evidence kind; a rule names the kinds it needs in ``check``'s signature."""


class Location(Kind, frozen=True, kw_only=True):
    """A place in the user's own code. ``file`` is absolute; ``line`` counts from 1, 0 = unknown."""

    file: str
    line: int
    function: str = ""


def is_user_file(name: str) -> bool:
    """False for torch, installed packages, the standard library, tdiag's probe and built-ins."""
    return bool(name) and not name.startswith("<") and not _LIBRARY.search(name)
