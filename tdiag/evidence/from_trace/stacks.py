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


class Stacks:
    """Finds the user's functions around events; made once a trace, since nesting takes time."""

    def __init__(self, view: View) -> None:
        self._trace = view.trace
        python = _python(view.trace)
        stacked = view.ops[view.trace.stack[view.ops] >= 0]
        self._nested = nest(view.trace, np.concatenate([python, stacked]))
        self._known: dict[int, Location | None] = {-1: None}

    def locate(self, rows: Rows) -> list[Location | None]:
        """For each event the innermost function of the user's around it; None if none is known."""
        lanes = self._trace.lane[rows].astype(np.int64)
        around = self._nested.around(lanes, self._trace.ts_ns[rows])
        return [self._walk(at) for at in around.tolist()]

    def _walk(self, at: int) -> Location | None:
        """Up from ``at`` to the first event that names a place; remembers the way."""
        trace, path = self._trace, []
        while at not in self._known:
            path.append(at)
            row = self._nested.rows[at]
            stack = trace.stacks[trace.stack[row]] if trace.stack[row] >= 0 else ""
            found = user_frame(trace.names[trace.name[row]]) or _of_stack(stack)
            if found:
                self._known[at] = found
                break
            at = int(self._nested.parent[at])
        place = self._known[at]
        self._known.update(dict.fromkeys(path, place))
        return place


def _python(trace: Trace) -> Rows:
    if PYTHON_CATEGORY not in trace.categories:
        return np.empty(0, np.int64)
    return np.flatnonzero(trace.category == trace.categories.index(PYTHON_CATEGORY))


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
