"""The machine over the whole run, profiled windows included; rules judge by ``kinds.System``."""

from __future__ import annotations

from tdiag.evidence.base import Kind


class Strip(Kind, frozen=True, kw_only=True):
    """One measure in each interval of a :class:`History`.

    ``unit``: ``cores``, ``bytes``, ``bytes_per_s`` or ``frac`` (0..1). ``values``: the mean of the
    interval for ``cores`` and ``bytes_per_s``, what its later sample read for the others; None
    where it was not measured. ``limit``: the most there can be, None where there is no such bound.
    """

    name: str
    unit: str
    values: tuple[float | None, ...]
    limit: float | None = None


class History(Kind, frozen=True, kw_only=True):
    """The samples of ``system.jsonl``, first to last.

    ``t_ns``: the samples' moments, ns on the events' clock. They bound the intervals, one fewer.
    ``no_gpu``: why no GPU was watched, "" where one was.
    """

    t_ns: tuple[int, ...]
    strips: tuple[Strip, ...]
    no_gpu: str = ""
