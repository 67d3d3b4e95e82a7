"""What torch.compile did in this process: the only file that knows dynamo's own counters.

Nothing here imports dynamo, switches any part of it on, or calls compiled code. Its counters are
not a stable interface: what a version of torch lacks is left out of the record.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core import Probe

MOST, LONGEST = 50, 200  # rows of each list in the record; characters of a reason
# Keys under which dynamo adds up seconds: whole compilations, and backward graphs that are compiled
# when backward first runs.
WHOLE = ("_compile.compile_inner", "backward._backward_impl")


def compiled_frames() -> int:
    """How many frames dynamo has compiled in this process; 0 without importing dynamo."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["frames"]["total"]) if utils is not None else 0


def compiles() -> list[int] | None:
    """Frames compiled so far, recompiled ones, and ns spent on all of it; None if nothing was ever
    compiled."""
    utils = sys.modules.get("torch._dynamo.utils")
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if utils is None or frames is None:
        return None
    per_frame = list(frames.FRAME_COMPILE_COUNTER.values())
    seconds = sum(sum(utils.compilation_time_metrics.get(key, ())) for key in WHOLE)
    return [sum(per_frame), sum(n - 1 for n in per_frame if n), round(seconds * 1e9)]


class Compiled:
    """Writes the `compiled` record, again each time that dynamo has compiled more."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.written: list[int] | None = None

    def write(self) -> None:
        """Called at the end of a window."""
        now = compiles()
        if not now or not now[0] or now == self.written:
            return
        self.written = now
        parts = (compilations, breaks, recompiled, limit)
        self.probe.recorder.write("compiled", **{part.__name__: _known(part) for part in parts})


def _known(part: Callable[[Any], Any]) -> Any:
    """The value; None if this version of torch names its parts differently, which is no fault."""
    try:
        return part(sys.modules["torch._dynamo.utils"])
    except Exception:
        return None


def compilations(utils: Any) -> list[list[Any]]:
    """[[compile id as in traces ("2/0"), place, ops in its graph, ns], …] of the compilations that
    dynamo still knows (the last 64). The continuation of a function after a graph break is called
    ``torch_dynamo_resume_in_<function>_at_<line>``."""
    found = []
    for m in utils.get_compilation_metrics():
        name = getattr(m, "co_name", None)
        if not name:  # a backward graph
            continue
        place = [os.path.abspath(m.co_filename), m.co_firstlineno, name]
        ns = round((getattr(m, "entire_frame_compile_time_s", None) or 0.0) * 1e9)
        number = str(getattr(m, "compile_id", None) or "")
        found.append([number, place, getattr(m, "graph_op_count", None) or 0, ns])
    return found


def breaks(utils: Any) -> list[list[Any]]:
    """[[places, reason, times], …]: the user's lines at which a graph ended before its function
    did, the called function first, and in how many compilations. Most frequent first."""
    found: dict[Any, int] = {}
    for cause in list(utils.graph_break_reasons):
        stack = [(os.path.abspath(f.filename), f.lineno, f.name) for f in cause.user_stack]
        key = (tuple(reversed(stack)), _why(str(cause.reason)))
        found[key] = found.get(key, 0) + 1
    return [[places, reason, times] for (places, reason), times in _most(found)]


def recompiled(utils: Any) -> list[list[Any]]:
    """[[place, the guard that failed, times], …], most frequent first."""
    found: dict[Any, int] = {}
    for code, reasons in list(utils.guard_failures.items()):
        for reason in reasons:
            key = (_place(code), _plain(_first_line(str(reason))))
            found[key] = found.get(key, 0) + 1
    return [[place, reason, times] for (place, reason), times in _most(found)]


def limit(utils: Any) -> bool:
    """Whether dynamo gave a function up after too many compilations and runs it as plain Python."""
    reasons = [getattr(m, "fail_reason", None) or "" for m in utils.get_compilation_metrics()]
    return any("limit exceeded" in reason for reason in reasons)


def _most(found: dict[Any, int]) -> list[tuple[Any, int]]:
    return sorted(found.items(), key=lambda item: -item[1])[:MOST]


def _place(code: Any) -> tuple[str, int, str] | None:
    if not isinstance(code, CodeType):
        return None
    return os.path.abspath(code.co_filename), code.co_firstlineno, code.co_name


def _why(reason: str) -> str:
    """Torch's name of what it cannot compile, and its explanation; without its hints."""
    said = re.search(r"^\s*Explanation: (.+)$", reason, re.MULTILINE)
    return ": ".join(x for x in (_first_line(reason), said and said[1]) if x)[:LONGEST]


def _first_line(reason: str) -> str:
    """Only the guard: its source follows after a ``#``, then a stack."""
    return reason.strip().partition("\n")[0].partition("  #")[0].strip()[:LONGEST]


def _plain(reason: str) -> str:
    """Without the leading number of the compiled version: ``0/7: tensor 'x' size mismatch``."""
    head, colon, rest = reason.partition(": ")
    known = colon and head.replace("/", "").isdigit()
    return rest if known else reason
