"""The system calls that strace counted."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType

from tdiag.evidence.store import Evidence
from tdiag.evidence.syscalls import Syscalls
from tdiag.report.page import Page, heading
from tdiag.tables.grid import absent, cost, first, grid, more, note
from tdiag.units import count, duration, plural

HOW = "`tdiag run --syscalls` attaches strace after the other profilers."


def parts(evidence: Evidence, page: Page) -> Iterable[RenderableType]:
    """Calls, failed ones and wall time per step, of all threads and workers, longest first."""
    found = evidence.get(Syscalls)
    if found is None:
        yield from absent("table of system calls", Syscalls, evidence, HOW)
        return
    rows = [
        [row.name, count(row.calls), count(row.errors) if row.errors else "", duration(row.ns),
         duration(row.ns / row.calls) if row.calls else ""]
        for row in first(found.rows, page)
    ]  # fmt: skip
    yield from heading("System calls, per step", f"{plural(found.steps, 'step')} in strace", page)
    yield grid(("call", "calls", "failed", "time", "each"), 1, rows, page)
    yield from more(len(found.rows) - len(rows), "call")
    yield note(
        "Times are by the clock, of every thread and worker, waiting included: futex, poll and"
        " epoll_wait are threads without work. strace stops the program at every call"
        f" ({cost('syscalls', evidence)}): compare these times with each other.",
    )
