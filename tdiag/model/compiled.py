"""What torch.compile did in a run: types only."""

from __future__ import annotations

import msgspec

from tdiag.model.place import Place


class CompiledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function and its continuations after graph breaks. ``compilations``: of both, each version
    counted; ``graphs``: those with ops in their graph; ``ns``: time to compile, without backward
    graphs that were compiled later."""

    at: Place
    compilations: int
    graphs: int
    ns: int


class GraphBreak(msgspec.Struct, frozen=True, kw_only=True):
    """A graph ended at this line, before its function did, in ``times`` compilations.

    Per traced step: ``per_step``, how often the program continued after it, and ``ns``, the host's
    time from the end of the previous graph to there. None: the trace does not show it."""

    at: Place
    reason: str
    times: int
    per_step: float | None = None
    ns: float | None = None


class Recompiled(msgspec.Struct, frozen=True, kw_only=True):
    """A function that was compiled again because this guard failed, ``times`` in the run."""

    at: Place | None
    reason: str
    times: int


class CompileReport(msgspec.Struct, frozen=True, kw_only=True):
    """``compilations``: of functions, each version counted; ``recompiles``: all except the first
    version of each, until the end of the clean window. Time to compile: ``before_ns`` before the
    clean steps, ``clean_ns`` per clean step. ``limit_hit``: a function was given up after too many
    versions and runs as plain Python. ``shares``: of the traced step's host time, ``graphs``:
    inside compiled graphs; ``broken``: ops that compiled functions call outside their graphs;
    ``eager``: ops outside compiled functions; ``guards``: choosing the version. Empty: unknown.
    """

    compilations: int
    recompiles: int
    before_ns: int
    clean_ns: float
    clean_recompiles: float
    limit_hit: bool
    functions: tuple[CompiledFunction, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    recompiled: tuple[Recompiled, ...] = ()
    shares: dict[str, float] = msgspec.field(default_factory=dict)
