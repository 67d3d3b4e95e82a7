"""The Python functions that cProfile timed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.console import RenderableType

from tdiag.evidence.kinds import CallRow, Calls, Steps
from tdiag.evidence.store import Evidence
from tdiag.model.place import Place
from tdiag.report.page import Page, heading
from tdiag.tables.grid import Cell, absent, cost, first, grid, more, note
from tdiag.units import count, duration, plural

HOW = "`tdiag run` runs cProfile after the trace: let the script take more steps."

# As cProfile names what is written in C.
_METHOD = re.compile(r"<method '(.+)' of '(.+)' objects>")
_FUNCTION = re.compile(r"<built-in method (.+)>")


def parts(evidence: Evidence, page: Page) -> Iterable[RenderableType]:
    """Calls, own and cumulative time per profiled step, largest own time first.

    Own time leaves out the functions called inside, cumulative time holds them.
    """
    calls = evidence.get(Calls)
    if calls is None:
        yield from absent("cProfile table", Calls, evidence, HOW)
        return
    rows = [_row(row) for row in first(calls.rows, page)]
    yield from heading("Python calls, per step", f"{plural(calls.steps, 'step')} in cProfile", page)
    yield grid(("function", "at", "calls", "own", "cumulative"), 2, rows, page)
    yield from more(len(calls.rows) - len(rows), "function")
    clean = evidence.get(Steps)
    instead = f" of {duration(clean.mean_ns)}" if clean else ""
    yield note(
        f"cProfile slows down every call ({cost('calls', evidence)}): compare"
        f" these times with each other, not with the clean step{instead}.",
    )


def _row(row: CallRow) -> list[Cell]:
    name, at = _named(row)
    return [name, at, count(row.calls), duration(row.own_ns), duration(row.total_ns)]


def _named(row: CallRow) -> tuple[str, Place | str]:
    """The function and where it is: ``TensorBase.item``, ``built-in``."""
    name = row.at.function
    if row.at.file:
        return name, row.at
    if found := _METHOD.fullmatch(name):
        return f"{found[2].rpartition('.')[2]}.{found[1]}", "built-in"
    found = _FUNCTION.fullmatch(name)
    return found[1] if found else name, "built-in"
