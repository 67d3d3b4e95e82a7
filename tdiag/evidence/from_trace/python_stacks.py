"""From an event to the user's code: the Python functions recorded around it.

torch.profiler records where a function begins, so the line is that of its ``def``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import numpy as np

from tdiag.evidence.from_trace.nesting import nest
from tdiag.evidence.from_trace.sorted_events import Rows, TraceView
from tdiag.model.place import Place
from tdiag.probe.wire import COMPREHENSIONS
from tdiag.trace import Trace

T = TypeVar("T")

PYTHON_CATEGORY = "python_function"
FRAME = re.compile(r"^(?P<file>.+\.py)\((?P<line>\d+)\): (?P<function>.+)$")
MODULE = "nn.Module: "
INSTALLED = re.compile(r"(^|[/\\])(site-packages|dist-packages|lib[/\\]python\d[\d.]*)[/\\]")
# Paths are recorded relative to sys.path, so installed packages often lack their folder.
LIBRARIES = frozenset(sys.stdlib_module_names) | {
    *("torch", "torchvision", "torchaudio", "numpy", "scipy", "pandas", "PIL", "cv2", "skimage"),
    *("sklearn", "albumentations", "transformers", "datasets", "tokenizers", "accelerate", "timm"),
    *("lightning", "pytorch_lightning", "librosa", "soundfile", "av", "decord", "h5py", "zarr"),
    *("pyarrow", "polars", "tqdm", "triton", "apex", "deepspeed", "megatron", "einops"),
}


class PythonStacks:
    """Finds the Python functions around events. Created once per trace, because nesting takes
    time."""

    def __init__(self, view: TraceView) -> None:
        self._trace = view.trace
        python = python_functions(view.trace)
        stacked = view.ops[view.trace.stack[view.ops] >= 0]
        self._nested = nest(view.trace, np.concatenate([python, stacked]))
        self._places: dict[int, Place | None] = {-1: None}
        self._modules: dict[int, str | None] = {-1: None}

    def locate(self, rows: Rows) -> tuple[list[Place | None], Rows]:
        """The innermost user function around each event, None if unknown: a list of places, each
        once, however often it is called, and for each event its index in that list."""
        return self._nearest(rows, self._places, self._place)

    def modules(self, rows: Rows) -> tuple[list[str | None], Rows]:
        """The innermost ``nn.Module`` called around each event, such as ``Linear_0``; same form."""
        return self._nearest(rows, self._modules, self._module)

    def _nearest(
        self, rows: Rows, known: dict[int, T | None], tell: Callable[[int], T | None]
    ) -> tuple[list[T | None], Rows]:
        """What the nearest enclosing event gives; computed once for all events inside the same
        one."""
        around = self._nested.around(
            self._trace.lane[rows].astype(np.int64), self._trace.ts_ns[rows]
        )
        starts = np.flatnonzero(np.bincount(around + 1)) - 1
        for start in starts.tolist():
            at, path = start, []
            while at not in known:
                path.append(at)
                found = tell(int(self._nested.rows[at]))
                if found is not None:
                    known[at] = found
                    break
                at = int(self._nested.parent[at])
            known.update(dict.fromkeys(path, known[at]))
        values = [known[start] for start in starts.tolist()]
        numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
        index = np.zeros(len(self._nested.rows) + 1, np.int64)
        index[starts + 1] = [numbers[value] for value in values]
        return list(numbers), index[around + 1]

    def _place(self, row: int) -> Place | None:
        trace = self._trace
        stack = trace.stacks[trace.stack[row]] if trace.stack[row] >= 0 else ""
        return user_frame(trace.names[trace.name[row]]) or _of_stack(stack)

    def _module(self, row: int) -> str | None:
        name = self._trace.names[self._trace.name[row]]
        return name.removeprefix(MODULE) if name.startswith(MODULE) else None


def python_functions(trace: Trace) -> Rows:
    """Calls of Python functions, if recorded (``with_stack``)."""
    if PYTHON_CATEGORY not in trace.categories:
        return np.empty(0, np.int64)
    return np.flatnonzero(trace.category == trace.categories.index(PYTHON_CATEGORY))


@cache
def user_frame(name: str) -> Place | None:
    """The place in a name like ``train.py(15): loss``; None for other events, library code, and
    comprehensions, which are lines of the function around them."""
    match = FRAME.match(name)
    if not match or name.startswith("<") or match["function"] in COMPREHENSIONS:
        return None
    file = match["file"]
    if INSTALLED.search(file) or re.split(r"[/\\.]", file)[0] in LIBRARIES:
        return None
    return Place(file=file, line=int(match["line"]), function=match["function"])


@cache
def _of_stack(stack: str) -> Place | None:
    """``Call stack`` arguments list frames innermost first, separated by semicolons."""
    for frame in stack.split(";"):
        if found := user_frame(frame.strip()):
            return found
    return None
