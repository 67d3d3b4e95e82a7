"""What torch.compile did: dynamo's own counters, and the compiled regions of a trace."""

from __future__ import annotations

import re

from tdiag.model.compiled import GraphBreak, Recompiled
from tdiag.model.kind import Kind
from tdiag.model.place import Place

_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")


class Compilation(Kind, frozen=True, kw_only=True):
    """One compiled version of one function. ``number``: its name in the trace's regions ("2/0").
    ``ops``: number of ops in its graph. ``resumed_at``: the line after the graph break at which it
    begins; ``at`` is then the function that broke, not dynamo's name for the rest of it."""

    number: str
    at: Place
    ops: int
    ns: int
    resumed_at: int | None = None


class BrokenAt(Kind, frozen=True, kw_only=True):
    """The user's lines on which a graph ended before its function did, the called function first.
    ``times``: the number of compilations in which this happened."""

    lines: tuple[Place, ...]
    reason: str
    times: int


class Compiles(Kind, frozen=True, kw_only=True):
    """What dynamo compiled. Absent if nothing was ever compiled.

    Until the end of the clean window: ``frames``, the number of compiled functions with each
    version counted; ``recompiles``, all except the first version of each; ``total_ns``, time spent
    compiling. Of these, in the clean window and per step: ``clean_recompiles`` and ``clean_ns``;
    before it: ``before_ns``. For the whole run: ``reasons``, ``compilations`` (the last 64) and
    ``breaks``. ``limit_hit``: dynamo gave up a function after too many versions, so it runs as
    plain Python."""

    frames: int
    recompiles: int
    total_ns: int
    clean_recompiles: float
    clean_ns: float
    reasons: tuple[Recompiled, ...]
    limit_hit: bool
    before_ns: int = 0
    compilations: tuple[Compilation, ...] = ()
    breaks: tuple[BrokenAt, ...] = ()


class CompiledRegions(Kind, frozen=True, kw_only=True):
    """Compiled code in the traced steps, host time in ns per step.

    ``entered``: calls, by the number of the compilation. ``gap_ns``, by the same number: time from
    the end of the previous graph, or the begin of the enclosing function, until it began; empty if
    the back end does not mark its graphs. ``graphs_ns``: inside compiled graphs, forward and
    backward. The time of other ops is ``broken_ns`` within compiled functions and ``eager_ns``
    elsewhere; None if graphs are not marked. ``guards_ns``: choosing the version.
    """

    entered: dict[str, float]
    gap_ns: dict[str, float]
    graphs_ns: float | None
    broken_ns: float | None
    eager_ns: float | None
    guards_ns: float


def resumed(function: str) -> tuple[str, int | None]:
    """Function and line of the break, from dynamo's name for the rest of a function. Other names
    are returned unchanged."""
    found = _RESUMED.fullmatch(function)
    return (found[1], int(found[2])) if found else (function, None)


def graph_breaks(compiles: Compiles, regions: CompiledRegions | None) -> tuple[GraphBreak, ...]:
    """One per line and reason, the longest gap first. A break in a called function also ends its
    callers' graphs; it counts once, where it happened."""
    causes: dict[tuple[Place, str], list[BrokenAt]] = {}
    for broken in compiles.breaks:
        causes.setdefault((broken.lines[0], broken.reason), []).append(broken)
    found = []
    for (at, reason), mine in causes.items():
        behind = [x for x in compiles.compilations if _behind(x, mine)]
        found.append(_with_hits(at, reason, sum(x.times for x in mine), behind, regions))
    return tuple(sorted(found, key=lambda x: (-(x.ns or 0.0), -(x.per_step or 0.0), -x.times)))


def _behind(compilation: Compilation, breaks: list[BrokenAt]) -> bool:
    at, line = compilation.at, compilation.resumed_at
    return any((x.file, x.line) == (at.file, line) for broken in breaks for x in broken.lines)


def _with_hits(
    at: Place, reason: str, times: int, behind: list[Compilation], regions: CompiledRegions | None
) -> GraphBreak:
    """``behind``: the compilations that begin after the break. If there are none, it is unknown how
    often the line was reached."""
    per_step = ns = None
    if regions is not None and behind:
        hits: dict[tuple[str, int | None], float] = {}
        for x in behind:  # one version of a rest runs each time, but every caller's rest
            key = x.at.function, x.resumed_at
            hits[key] = hits.get(key, 0.0) + regions.entered.get(x.number, 0.0)
        per_step = max(hits.values())
        if regions.graphs_ns is not None:
            ns = sum(regions.gap_ns.get(x.number, 0.0) for x in behind)
    return GraphBreak(at=at, reason=reason, times=times, per_step=per_step, ns=ns)
