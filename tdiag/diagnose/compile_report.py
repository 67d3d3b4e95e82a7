"""The report on torch.compile: what was compiled, broken and recompiled, and its share of the
step."""

from __future__ import annotations

from tdiag.evidence.compiling import CompiledRegions, Compiles, graph_breaks
from tdiag.evidence.steps import TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.model.compiled import CompiledFunction, CompileReport
from tdiag.model.place import Place


def make_compile_report(evidence: Evidence) -> CompileReport | None:
    """The report; None if dynamo compiled nothing."""
    compiles = evidence.get(Compiles)
    if compiles is None:
        return None
    regions, traced = evidence.get(CompiledRegions), evidence.get(TracedSteps)
    return CompileReport(
        compilations=compiles.frames,
        recompiles=compiles.recompiles,
        before_ns=compiles.before_ns,
        clean_ns=compiles.clean_ns,
        clean_recompiles=compiles.clean_recompiles,
        limit_hit=compiles.limit_hit,
        functions=_functions(compiles),
        breaks=graph_breaks(compiles, regions),
        recompiled=compiles.reasons,
        shares=_shares(regions, traced.mean_ns) if regions and traced else {},
    )


def _functions(compiles: Compiles) -> tuple[CompiledFunction, ...]:
    """The functions by compile time, longest first."""
    rows: dict[tuple[str, str], CompiledFunction] = {}
    for x in sorted(compiles.compilations, key=lambda x: x.resumed_at is not None):
        key = x.at.file, x.at.function
        at: Place = rows[key].at if key in rows else x.at
        before = rows.get(key) or CompiledFunction(at=at, compilations=0, graphs=0, ns=0)
        rows[key] = CompiledFunction(
            at=at,
            compilations=before.compilations + 1,
            graphs=before.graphs + (x.ops > 0),
            ns=before.ns + x.ns,
        )
    return tuple(sorted(rows.values(), key=lambda row: -row.ns))


def _shares(regions: CompiledRegions, step_ns: int) -> dict[str, float]:
    parts = {
        "graphs": regions.graphs_ns,
        "broken": regions.broken_ns,
        "eager": regions.eager_ns,
        "guards": regions.guards_ns,
    }
    known = parts if regions.graphs_ns is not None else {}
    return {name: ns / step_ns for name, ns in known.items() if ns is not None and step_ns}
