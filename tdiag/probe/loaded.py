"""The probe in a process that ran without tdiag, for one pass of windows.

`tdiag attach` has the main thread of a training load it between two instructions, and that of each
process below (``sys.remote_exec``): of ranks, of loader workers, and of those that do neither.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from torch.utils.data import get_worker_info

from . import forget
from .visits import Declined, Visits


def begin(run_dir: str) -> None:
    """Install the hooks. Does nothing if the request has been withdrawn meanwhile."""
    watched = f"{__package__}.assembly" in sys.modules

    def install(there: str, over: Callable[[int], None]) -> None:
        if watched:
            raise Declined("tdiag already watches this process")
        from . import assembly

        assembly.install(there, visited=assembly.Visited(over))

    def over(steps: int) -> None:
        forget()

    visits = Visits(run_dir, install)
    asked = visits.asked()
    if asked is not None and get_worker_info() is not None and not watched:
        install(run_dir, over)  # nobody waits for its answer
    elif not (asked is not None and visits.receive(asked, over)) and not watched:
        forget()


def leave() -> None:
    """Leave a process that has made no step, because only the end of a step ends a visit."""
    assembly = sys.modules.get(f"{__package__}.assembly")
    if assembly is not None:
        assembly.leave_idle()
