"""Evidence about a process watched from outside: shares of its time, without steps."""

from __future__ import annotations

import msgspec

from tdiag.model.kind import Kind
from tdiag.model.place import Place


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What the training thread did in ``frac`` of its samples. ``name``: a budget component, or
    ``logging``, ``imports``, or ``other`` for the user's lines outside these. ``error_frac``:
    standard error of ``frac``, from the differences between ten parts of the window. ``at``: the
    user's line with most of these samples, ``at_frac``: its share of all samples."""

    name: str
    frac: float
    error_frac: float
    at: Place | None = None
    at_frac: float = 0.0


class Fetching(msgspec.Struct, frozen=True, kw_only=True):
    """The processes that fetch. ``workers``: DataLoader workers, 0 = the training process itself.
    ``fetch_frac``: share of their samples in a fetch. ``cpu_frac``, ``queued_frac``: share of the
    time that their main threads were on a core, or waited for one; ``disk_frac``: share of the
    readings in which they waited for a disk. Means over the processes. ``read_bytes_per_s``: from
    storage, in total; None = not counted. ``at``: the line with most samples of the fetches,
    ``at_frac``: its share of them."""

    workers: int
    fetch_frac: float
    cpu_frac: float
    queued_frac: float
    disk_frac: float
    read_bytes_per_s: float | None = None
    at: Place | None = None
    at_frac: float = 0.0


class WatchedRank(msgspec.Struct, frozen=True, kw_only=True):
    """One training process of several. ``rank``: None if its environment does not show it.
    ``cpu_frac``: share of the time that its main thread was on a core."""

    pid: int
    rank: int | None
    samples: int
    cpu_frac: float | None
    activities: tuple[Activity, ...]


class Watched(Kind, frozen=True, kw_only=True):
    """A process that was watched from outside for ``seconds`` (`tdiag attach`).

    ``activities``: of its training thread, largest first; their shares add up to 1. ``fetching``:
    None if no fetch was sampled or no state is known. ``device``: the process has opened a GPU;
    ``device_used_frac``: share of the time in which a kernel of any process ran on it, by NVML.
    ``own_lines_frac``: share of all samples that are in forward with the user's line as innermost
    frame (Python, or a torch call that no sample shows). ``other_threads_cores``: cores that the
    process's other threads used, None = unknown; ``ranks``: of several training processes, empty
    for one.
    """

    pid: int
    seconds: float
    samples: int
    activities: tuple[Activity, ...]
    fetching: Fetching | None = None
    device: bool = False
    device_used_frac: float | None = None
    own_lines_frac: float = 0.0
    other_threads_cores: float | None = None
    ranks: tuple[WatchedRank, ...] = ()

    def frac(self, *names: str) -> float:
        """These activities' share of the samples, 0..1."""
        return sum(activity.frac for activity in self.activities if activity.name in names)

    def most(self, name: str) -> Activity | None:
        return next((activity for activity in self.activities if activity.name == name), None)
