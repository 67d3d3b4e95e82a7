"""Programs of this package as child processes."""

from __future__ import annotations

import sys


def program(module: str) -> list[str]:
    """The command that runs a module of this package, imported from where this process did.

    ``python -m`` would look into the current folder first, where a user may keep a ``tdiag`` of
    another version, or another one altogether.
    """
    run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", f"import runpy, sys; sys.path[:] = {sys.path!r}; {run}"]
