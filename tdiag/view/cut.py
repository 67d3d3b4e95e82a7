"""A few steps of a trace, for a viewer that needs a minute per 700,000 events."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tdiag.evidence.from_trace.sorted_events import DEVICE_CATEGORIES, RUNTIME
from tdiag.trace import Trace
from tdiag.trace.columns import ABSENT, Ints, Mask
from tdiag.view.chrome_events import Event

STEP = re.compile(r"ProfilerStep#\d+$")
_ANNOTATIONS = ("user_annotation", "cpu_op", "operator")  # not gpu_user_annotation, its echo
_FOR_EVER = 1 << 62


class Cut:
    """The first ``steps`` steps of a trace: what the host began in them, and the device work that
    this caused, whenever it ran."""

    def __init__(self, trace: Trace, steps: int) -> None:
        marks = [n for n, name in enumerate(trace.names) if STEP.match(name)]
        host = [n for n, c in enumerate(trace.categories) if c.lower() in _ANNOTATIONS]
        rows = np.isin(trace.name, marks) & np.isin(trace.category, host)
        begins = np.sort(trace.ts_ns[rows])
        self.steps = min(steps, len(begins))  # 0: the trace marks none, and is not cut
        self.begin_ns = int(begins[0]) if self.steps else 0
        whole = self.steps == len(begins)
        self.end_ns = _FOR_EVER if whole else int(begins[self.steps])
        launches = [n for n, c in enumerate(trace.categories) if RUNTIME.search(c.lower())]
        inside = np.isin(trace.category, launches) & self._inside(trace.ts_ns)
        self.launched = set(trace.correlation[inside].tolist()) - {ABSENT, 0}
        device = [n for n, c in enumerate(trace.categories) if c.lower() in DEVICE_CATEGORIES]
        of_device = np.isin(trace.category, device)
        mine = np.isin(trace.correlation, list(self.launched))
        self.events = int(np.where(of_device, mine, self._inside(trace.ts_ns)).sum())

    def _inside(self, at_ns: Ints) -> Mask:
        inside: Mask = (at_ns >= self.begin_ns) & (at_ns < self.end_ns)
        return inside

    def holds(self, event: Event, at_ns: int) -> bool:
        """Whether the event is kept. ``at_ns``: when it began, on the trace's own clock."""
        if event.get("ph") == "M":
            return True
        if str(event.get("cat")).lower() in DEVICE_CATEGORIES:
            return _number((event.get("args") or {}).get("correlation")) in self.launched
        return self.begin_ns <= at_ns < self.end_ns


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int) or str(value).isdecimal() else ABSENT
