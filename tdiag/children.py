"""Programs of this package as child processes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def program(module: str) -> list[str]:
    """The command that runs a module of this package, imported from where this process did.

    ``python -m`` would look into the current folder first, where a user may keep a ``tdiag`` of
    another version, or another one altogether.
    """
    run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", f"import runpy, sys; sys.path[:] = {sys.path!r}; {run}"]


def end_with_this_process(number: signal.Signals) -> Callable[[], None]:
    """A ``preexec_fn`` of Popen: the child gets this signal when this process ends, even of
    SIGKILL. The kernel sends it to the child alone, not to the child's own children; only Linux
    does."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # loading it in the child might lock up
    parent = os.getpid()

    def tie() -> None:
        signal.signal(number, signal.SIG_DFL)  # nohup's ignoring would be inherited
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it has ended
            os.kill(os.getpid(), number)

    return tie
