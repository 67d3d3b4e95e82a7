"""The section that compares the step with the machine's rates, for a run's report."""

from __future__ import annotations

from collections.abc import Iterator

from tdiag.model.diagnosis import Roofline
from tdiag.report.document import Block, Cell, Column, Facts, Line, Table
from tdiag.units import count, duration, percent, plural


def blocks(found: Roofline) -> Iterator[Block]:
    """The step compared with the machine's rates, then its heaviest ops."""
    used = "" if found.threads is None else f" with {plural(found.threads, 'thread')}"
    yield Facts(
        (
            Line(duration(found.step_ns), "computing"),
            Line(f"{duration(found.compute_ns)} at best{used}", "arithmetic"),
            Line(f"{duration(found.memory_ns)} at best{used}", "memory traffic"),
            Line(f"{duration(found.dispatch_ns)} for {count(found.calls)} calls", "dispatch"),
            Line(found.source, "rates", minor=True),
        )
    )
    if not found.lines:
        return
    yield Table(
        title="",
        columns=(
            Column("op", "kernel"), Column("called in", "start"), Column("calls"), Column("time"),
            Column("at best"), Column("reached"), Column("bound", "end"),
        ),
        rows=tuple(
            (
                Cell(line.name), Cell("", place=line.at), Cell(count(line.count), line.count),
                Cell(duration(line.ns), line.ns), Cell(duration(line.best_ns), line.best_ns),
                _share(line.best_ns, line.ns), Cell(line.bound),
            )
            for line in found.lines
        ),
        note="Times are as traced.",
        what="op",
    )  # fmt: skip


def _share(part: int, whole: int) -> Cell:
    share = min(1.0, part / whole) if whole else 0.0
    return Cell(percent(share), share)
