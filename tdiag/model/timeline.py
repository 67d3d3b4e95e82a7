"""One step drawn over time: what the host and each part of the device did when."""

from __future__ import annotations

import msgspec

from tdiag.model.kind import Kind

# A step with more spans in a lane is cut into this many cells: two for each column of a wide
# terminal, and a few pixels of a page.
CELLS = 240


class Span(msgspec.Struct, frozen=True, array_like=True):
    """``begin_ns`` and ``end_ns`` count from the step's begin; ``kind`` is a budget component, or
    ``ops`` (host ops of a trace without a device)."""

    begin_ns: int
    end_ns: int
    kind: str


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """Disjoint spans in order of time; between them nothing ran (on the host: nothing that has a
    name).

    ``name``: ``host`` (any thread), ``compute``, ``comm`` or ``copies`` (any stream of any device
    in the trace). ``exact``: the spans have their true times. Otherwise the lane had too many
    spans: the step is cut into :data:`CELLS` cells of equal length, and each cell contains its
    kinds one after another, each as long as it lasted within that cell, so that totals are correct.
    """

    name: str
    spans: tuple[Span, ...]
    exact: bool = True


class Timeline(Kind, frozen=True, kw_only=True):
    """The step of median length. ``source``: ``trace`` (the profiler slowed its host) or
    ``baseline`` (a clean step, host only). ``steps``: how many steps it was chosen from; 0 if the
    trace marks none and is drawn whole."""

    step_ns: int
    steps: int
    source: str
    lanes: tuple[Lane, ...]
