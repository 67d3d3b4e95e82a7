"""The section on torch.compile in a run's report."""

from __future__ import annotations

from collections.abc import Iterator

from tdiag.model.compiled import CompileReport
from tdiag.model.place import Place
from tdiag.report.document import Block, Cell, Column, Facts, Line, Table
from tdiag.units import count, duration, percent, plural

_SHARES = {
    "graphs": "in compiled graphs",
    "broken": "in eager ops of compiled functions",
    "eager": "in other eager ops",
    "guards": "checking guards",
}
_EMPTY = Cell("")


def blocks(found: CompileReport) -> Iterator[Block]:
    """How long compiling took and how much of the step is compiled; then functions, breaks,
    guards."""
    again = f", {count(found.recompiles)} of them again" if found.recompiles else ""
    within = "none within them"
    if found.clean_ns:
        each = plural(found.clean_recompiles, "recompilation")
        within = f"{duration(found.clean_ns)} per step within them ({each} per step)"
    lines = [
        Line(f"{plural(found.compilations, 'compilation')}{again}", "compiled"),
        Line(f"{duration(found.before_ns)} before the clean steps, {within}", "compiling"),
    ]
    if found.shares:
        parts = (f"{percent(found.shares[name])} {said}" for name, said in _SHARES.items())
        lines.append(Line(", ".join(parts), "traced step"))
    else:
        why = "not known: no traced step marks its compiled graphs"
        lines.append(Line(why, "traced step", tone="quiet"))
    if found.limit_hit:
        lines.append(
            Line("a function was recompiled too often: it runs as plain Python", "given up")
        )
    yield Facts(tuple(lines))
    yield Table(
        title="",
        columns=(
            Column("what", "end"), Column("line", "start"), Column("function", "end", wide=True),
            Column("times", hint="compilations, whole run"),
            Column("compiling", hint="whole run"),
            Column("a step", hint="how often, in a traced step"),
            Column("gap", hint="from the end of one graph to the next, per traced step"),
            Column("why", "end"),
        ),
        rows=tuple(_rows(found)),
        note="break: a graph ended before its function did. again: the guard that failed."
        " gap: host time from the end of one graph to the next, per traced step. compiling: of the"
        " last 64 compilations, without backward graphs compiled when backward first ran.",
        what="row",
        first=12,
    )  # fmt: skip


def _rows(found: CompileReport) -> Iterator[tuple[Cell, ...]]:
    for x in found.functions:
        graphs = Cell(plural(x.graphs, "graph"))
        yield (
            *_head("compiled", x.at, x.compilations),
            Cell(duration(x.ns), x.ns),
            _EMPTY,
            _EMPTY,
            graphs,
        )
    for cut in found.breaks:
        hits = Cell("?") if cut.per_step is None else Cell(count(cut.per_step), cut.per_step)
        gap = Cell("?") if cut.ns is None else Cell(duration(cut.ns), cut.ns)
        yield *_head("break", cut.at, cut.times), _EMPTY, hits, gap, Cell(cut.reason)
    for failed in found.recompiled:
        yield *_head("again", failed.at, failed.times), *[_EMPTY] * 3, Cell(failed.reason)


def _head(what: str, at: Place | None, times: int) -> tuple[Cell, ...]:
    place = Cell("", place=at) if at else _EMPTY
    return Cell(what), place, Cell(at.function if at else ""), Cell(count(times), times)
