"""Python's own sampler ("Tachyon", since 3.15), where py-spy is missing or cannot read the Python.

It needs the same permission as py-spy, and the interpreter of the process that is sampled.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

FIRST = (3, 15)  # PEP 799
STACKS = Path(__file__).with_name("tachyon_stacks.py")
_VERSION = re.compile(r"(\d+)\.(\d+)")


def has_sampler(version: str) -> bool:
    """Whether a Python of this version (``3.15.2``) brings the sampler."""
    found = _VERSION.search(version)
    return found is not None and (int(found[1]), int(found[2])) >= FIRST


def command(pid: int, *options: str) -> list[str] | None:
    """The words that read the stacks of a process; None if its Python has no sampler, or does not
    say its version in its name. ``options``: see ``tachyon_stacks``."""
    with contextlib.suppress(OSError):
        python = Path(f"/proc/{pid}/exe").readlink()
        if has_sampler(python.name):
            return [str(python), "-I", str(STACKS), str(pid), *options]
    return None
