"""From an event to the user's own code: the Python functions recorded around it.

torch.profiler records where a function begins, so the line is that of its ``def``.
"""

from __future__ import annotations

import re
import sys
from functools import cache

import numpy as np

from tdiag.evidence.from_trace.nesting import nest
from tdiag.evidence.from_trace.view import Rows, View
from tdiag.evidence.kinds import Location
from tdiag.trace import Trace

PYTHON_CATEGORY = "python_function"
FRAME = re.compile(r"^(?P<file>.+\.py)\((?P<line>\d+)\): (?P<function>.+)$")
INSTALLED = re.compile(r"(^|[/\\])(site-packages|dist-packages|lib[/\\]python\d[\d.]*)[/\\]")
# Paths are recorded relative to sys.path, so installed packages often lack their folder.
LIBRARIES = frozenset(sys.stdlib_module_names) | {"torch", "torchvision", "torchaudio", "numpy"}


def locate(view: View, rows: Rows) -> list[Location | None]:
    """For each event the innermost function of the user's around it; None where none is known."""
    trace = view.trace
    python = _python(trace)
    if not len(python) and not (trace.stack >= 0).any():
        return [None] * len(rows)
    around = np.unique(np.concatenate([python, view.ops, rows]))
    nested = nest(trace, around)
    place = np.empty(len(trace), np.int64)
    place[nested.rows] = np.arange(len(nested.rows))
    known: dict[int, Location | None] = {-1: None}
    return [_walk(trace, nested.rows, nested.parent, int(place[row]), known) for row in rows]


def _python(trace: Trace) -> Rows:
    if PYTHON_CATEGORY not in trace.categories:
        return np.empty(0, np.int64)
    return np.flatnonzero(trace.category == trace.categories.index(PYTHON_CATEGORY))


def _walk(
    trace: Trace, rows: Rows, parent: Rows, at: int, known: dict[int, Location | None]
) -> Location | None:
    """Up from ``at`` to the first event that names a place; remembers the way."""
    path = []
    while at not in known:
        path.append(at)
        row = rows[at]
        stack = trace.stacks[trace.stack[row]] if trace.stack[row] >= 0 else ""
        found = user_frame(trace.names[trace.name[row]]) or _of_stack(stack)
        if found:
            known[at] = found
            break
        at = int(parent[at])
    place = known[at]
    known.update(dict.fromkeys(path, place))
    return place


@cache
def user_frame(name: str) -> Location | None:
    """The place named like ``train.py(15): loss``; None for other events and library code."""
    match = FRAME.match(name)
    if not match or name.startswith("<"):
        return None
    file = match["file"]
    if INSTALLED.search(file) or re.split(r"[/\\.]", file)[0] in LIBRARIES:
        return None
    return Location(file=file, line=int(match["line"]), function=match["function"])


@cache
def _of_stack(stack: str) -> Location | None:
    """``Call stack`` arguments list frames innermost first, separated by semicolons."""
    for frame in stack.split(";"):
        if found := user_frame(frame.strip()):
            return found
    return None
