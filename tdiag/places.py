"""Whose code a file holds."""

from __future__ import annotations

import re

_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3[^/]*/|/tdiag/probe/|/tdiag_probe/")


def is_user_file(name: str) -> bool:
    """False for torch, installed packages, the standard library, tdiag's probe and built-ins."""
    return bool(name) and not name.startswith("<") and not _LIBRARY.search(name)
