"""Device work by its origin: kernels, ops, modules, the user's functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tdiag.evidence.device import DeviceParts, Part
from tdiag.evidence.from_trace.intervals import Ints
from tdiag.evidence.from_trace.nesting import Nested
from tdiag.evidence.from_trace.stacks import Stacks
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.view import Rows, View
from tdiag.model.place import Place
from tdiag.trace.decode import Interned

TOP = 1000  # as documented at DeviceParts: more than most traces have names


def issuing_ops(view: View, ops: Nested, work: Rows) -> Rows:
    """Per work row the innermost op around the call that launched it: index into ``ops.rows``,
    −1 where there is none."""
    calls = view.launched_by(work)
    known = calls >= 0
    found = np.full(len(work), -1, np.int64)
    rows = calls[known]
    found[known] = ops.around(view.trace.lane[rows].astype(np.int64), view.trace.ts_ns[rows])
    return found


def device_parts(view: View, ops: Nested, stacks: Stacks, window: Window) -> DeviceParts:
    trace = view.trace
    work = window.began(view, view.work)
    durations, steps = trace.dur_ns[work], window.count
    issuers = issuing_ops(view, ops, work)
    by_op = issuers >= 0
    calls = view.launched_by(work)
    called = calls >= 0
    modules, module = stacks.modules(calls[called])
    places, place = stacks.locate(calls[called])
    functions = [f"{at.function} ({at.file})" if at else None for at in places]
    return DeviceParts(
        kernels=_by_name(trace.names, trace.name[work], durations, steps),
        ops=_by_name(trace.names, trace.name[ops.rows[issuers[by_op]]], durations[by_op], steps),
        modules=_by_text(modules, module, durations[called], steps),
        functions=_by_text(functions, place, durations[called], steps, places),
    )


def _by_name(
    names: Sequence[str], numbers: npt.NDArray[Any], durations: Ints, steps: int
) -> tuple[Part, ...]:
    counts = np.bincount(numbers, minlength=1)
    total = np.bincount(numbers, durations, len(counts))
    top = [i for i in np.argsort(-total, kind="stable")[:TOP].tolist() if counts[i]]
    return tuple(
        Part(name=names[i], count=int(counts[i]) / steps, device_ns=float(total[i]) / steps)
        for i in top
    )


def _by_text(
    texts: Sequence[str | None],
    which: Rows,
    durations: Ints,
    steps: int,
    places: Sequence[Place | None] | None = None,
) -> tuple[Part, ...]:
    """Work by its text, where it has one: ``which`` of ``texts``. ``places`` goes with these."""
    numbers: Interned[str] = Interned()
    number = np.array([-1 if text is None else numbers[text] for text in texts], np.int64)[which]
    known = number >= 0
    parts = _by_name(list(numbers), number[known], durations[known], steps)
    at = dict(zip(texts, places or [], strict=False))
    return tuple(
        Part(name=p.name, count=p.count, device_ns=p.device_ns, at=at.get(p.name)) for p in parts
    )
