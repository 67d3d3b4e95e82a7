"""The steps that a trace covers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tdiag.evidence.from_trace.intervals import Ints, covered
from tdiag.evidence.from_trace.sorted_events import Rows, TraceView
from tdiag.evidence.steps import TracedSteps
from tdiag.model.threshold import Threshold

PROFILER_STEP = re.compile(r"^ProfilerStep#\d+")
NEXT_BATCH = re.compile(r"^enumerate\(DataLoader\)")
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")

WARM_UP_RATIO = Threshold(
    2.0,
    "times the median of the rest",
    "Heuristic: compilation, autotuning and allocation are known to take several times a step,"
    " ordinary variation does not.",
)
MIN_NUMBERED = 20  # with fewer ops a median of gaps says nothing
ENOUGH_NUMBERED = 20_000  # more ops add nothing
MIN_REST = 2  # steps that must remain as a reference for warm-up
MOST_WARM_UP_FRAC = Threshold(
    1 / 3,
    "of the steps",
    "Heuristic: if more steps are slower, that is how this training runs, not warm-up.",
)


@dataclass(frozen=True)
class TracedWindow:
    """``bounds``: n + 1 instants (ns) around n consecutive steps. ``warm_up``: number of steps set
    aside. ``host_end``: where the host ended its last step; the device may work on until ``end``.
    ``head_ns``: time before the first device work, set aside if no steps are marked. ``sampled``:
    the file holds only a sample of the recorded events."""

    bounds: Ints
    found_by: str
    host_end: int
    warm_up: int = 0
    sampled: bool = False
    head_ns: int = 0

    @property
    def begin(self) -> int:
        return int(self.bounds[0])

    @property
    def end(self) -> int:
        return int(self.bounds[-1])

    @property
    def count(self) -> int:
        return len(self.bounds) - 1

    def began(self, view: TraceView, rows: Rows) -> Rows:
        """Those of ``rows`` that began within the steps."""
        start = view.trace.ts_ns[rows]
        return rows[(start >= self.begin) & (start < self.end)]

    def traced_steps(self) -> TracedSteps:
        durations = np.diff(self.bounds)
        return TracedSteps(
            durations_ns=tuple(durations.tolist()),
            mean_ns=round((self.end - self.begin) / self.count),
            count=self.count,
            found_by=self.found_by,
            sampled=self.sampled,
        )


def find_window(view: TraceView, given: Sequence[int] = ()) -> TracedWindow | None:
    """The consecutive steps of the trace, warm-up set aside; None for a trace without events.

    ``given``: step boundaries that the caller knows, on the trace's clock; else ProfilerStep
    annotations, else the loader's or the optimizer's, else the whole span as one step.
    """
    if len(given) > 1:
        return TracedWindow(np.array(given, np.int64), "run", given[-1], sampled=_sampled(view))
    bounds, found_by = _bounds(view)
    if bounds is None:
        return None
    host_end = int(bounds[-1])
    bounds = _until_device_ends(view, bounds)
    head = _head(view, bounds) if found_by == "span" else 0
    bounds[0] += head
    waits = view.spans(view.matching(view.annotations, NEXT_BATCH))
    working = np.diff(bounds) - covered(waits, bounds[:-1], bounds[1:])
    warm_up = _warm_up(working) if found_by != "span" else 0
    return TracedWindow(bounds[warm_up:], found_by, host_end, warm_up, _sampled(view), head)


def _bounds(view: TraceView) -> tuple[Ints | None, str]:
    trace = view.trace
    steps = view.matching(view.annotations, PROFILER_STEP)
    if len(steps):
        lanes = trace.lane[steps].astype(np.int64)
        return _profiler_steps(trace.ts_ns[steps], trace.ends(steps), lanes), "ProfilerStep"
    span = _span(view)
    if span is None:
        return None, "span"
    for pattern, found_by in ((NEXT_BATCH, "loader"), (OPTIMIZER_STEP, "optimizer")):
        rows = view.matching(view.annotations, pattern)
        if len(rows) > 1:
            if found_by == "loader":  # from one batch request to the next
                return np.unique(trace.ts_ns[rows]), found_by
            return np.unique(trace.ends(rows)), found_by
    return span, "span"


def _profiler_steps(start: Ints, end: Ints, lane: Ints) -> Ints:
    """Their bounds, from the thread with the most of them and its longest unbroken recording.

    A repeating schedule pauses between recordings; the pauses belong to no step.
    """
    lanes, counts = np.unique(lane, return_counts=True)
    mine = lane == lanes[np.argmax(counts)]
    start, end = start[mine], end[mine]
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    usual = np.median(np.diff(np.r_[start, end[-1]]))
    first = np.flatnonzero(np.r_[True, start[1:] - end[:-1] > usual])
    last = np.r_[first[1:], len(start)]
    run = int(np.argmax(last - first))
    bounds: Ints = np.r_[start[first[run] : last[run]], end[last[run] - 1]]
    return bounds


def _span(view: TraceView) -> Ints | None:
    rows = np.concatenate([view.work, view.runtime, view.ops, view.annotations])
    if not len(rows):
        return None
    begin, end = view.trace.ts_ns[rows].min(), view.trace.ends(rows).max()
    return np.array([begin, end], np.int64) if end > begin else None


def _head(view: TraceView, bounds: Ints) -> int:
    """Time before any device work begins, ns.

    Before that, the device may have run work issued before the recording: a copy that blocks there
    waits for that work, and idle time there has no known cause.
    """
    if not len(view.work):
        return 0
    return max(0, int(view.trace.ts_ns[view.work].min()) - int(bounds[0]))


def _until_device_ends(view: TraceView, bounds: Ints) -> Ints:
    """Extend the last step until the device has finished what these steps issued.

    A host that runs ahead ends its last step while the device still works on it.
    """
    trace = view.trace
    issued = trace.ts_ns[view.launch]
    own = view.work[(view.launch >= 0) & (issued >= bounds[0]) & (issued < bounds[-1])]
    last = int(trace.ends(own).max()) if len(own) else 0
    bounds = bounds.copy()
    bounds[-1] = max(int(bounds[-1]), last)
    return bounds


def _sampled(view: TraceView) -> bool:
    """Whether most ops lack the op recorded next (the profiler numbers them consecutively)."""
    numbers = np.unique(view.trace.external[view.ops[:ENOUGH_NUMBERED]])
    numbers = numbers[numbers > 0]
    return len(numbers) > MIN_NUMBERED and float(np.median(np.diff(numbers))) > 1


def _warm_up(working: Ints) -> int:
    """Number of leading warm-up steps: each is slow, and they are at most a third of all.

    ``working``: each step's time without waiting for data. A loader fills its queue at the start
    and stalls now and then; neither is warm-up.
    """
    most = min(math.ceil(len(working) * MOST_WARM_UP_FRAC), len(working) - MIN_REST)
    if most < 1:
        return 0
    slow = working > WARM_UP_RATIO * np.median(working[most:])
    leading = int(np.argmin(slow))  # the first step that is not slow
    return leading if leading <= most else 0
