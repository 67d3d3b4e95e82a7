"""The user's own lines around a place."""

from __future__ import annotations

import tokenize
from pathlib import Path

import msgspec

BEFORE, AFTER = 5, 9  # more lines after: a trace knows only where a function begins
MOST_BYTES = 1 << 20  # a larger file is generated and not read
MOST_CHARACTERS = 300  # of a line


class Excerpt(msgspec.Struct, frozen=True, kw_only=True):
    """``lines`` of ``file``, starting at line ``first``. ``changed``: the file was written after
    the run began, so these may not be the lines that ran."""

    file: str
    first: int
    lines: tuple[str, ...]
    changed: bool = False


def excerpt(file: str, line: int, recorded_unix_ns: int | None) -> Excerpt | None:
    """None if the lines no longer exist, and for anything but Python: a trace made elsewhere may
    name any file of this machine, and reports are passed on."""
    path = Path(file)
    if path.suffix != ".py" or not path.is_absolute() or line < 1:
        return None
    try:
        about = path.stat()
        if about.st_size > MOST_BYTES or not path.is_file():
            return None
        with tokenize.open(path) as source:
            lines = source.read().splitlines()
    except (OSError, SyntaxError, ValueError):
        return None
    if line > len(lines):
        return None
    first = max(1, line - BEFORE)
    shown = lines[first - 1 : line + AFTER]
    return Excerpt(
        file=file,
        first=first,
        lines=tuple(text[:MOST_CHARACTERS] for text in shown),
        changed=recorded_unix_ns is not None and about.st_mtime_ns > recorded_unix_ns,
    )
