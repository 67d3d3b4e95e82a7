"""Which steps are clean: undisturbed by any profiler and by tdiag itself."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tdiag.evidence.from_run.event_files import Process
from tdiag.evidence.from_run.records import (
    BoundaryRecord,
    IteratorRecord,
    LoaderRecord,
    TorchRecord,
    WindowRecord,
)
from tdiag.evidence.steps import StepHistory, Steps
from tdiag.probe.wire import BASELINE, ENDED, PROFILED

# The second pass comes later, lasts longer and is extended to whole epochs, so it is used alone
# once it has this many steps: then two of them exceed the 90th percentile that is reported.
ENOUGH_STEPS = 20
# The first step pays for memory pools, thread pools and lazily loaded libraries.
COLD_STEPS = 1
# Fewer steps do not show what is usual; a single one may be anything.
FEWEST_STEPS = 2


@dataclass(frozen=True)
class Clean:
    """``mask``: one entry per step of the lead process. ``spans``: (begin, end) of each unbroken
    stretch of clean steps, ns on the events' clock."""

    mask: npt.NDArray[np.bool_]
    spans: tuple[tuple[int, int], ...]
    note: str = ""

    def holds(self, moment: int) -> bool:
        """Whether this moment is in a clean stretch (its end included)."""
        place = bisect_left(self.spans, moment, key=lambda span: span[1])
        return place < len(self.spans) and self.spans[place][0] <= moment


def find_clean(lead: Process) -> Clean | None:
    """The steps to judge by; None if there are none (see :func:`why_none`)."""
    measured = lead.steps.durations > 0
    number = _passes(lead)
    if _on_device(lead):
        number[~np.isin(number, [w.number for w in _ended(lead) if w.drained is not None])] = 0
    first, second = (measured & (number == n) for n in (1, 2))
    if second.sum() >= ENOUGH_STEPS:
        return _clean(lead, second)
    both = first | second
    if both.any():
        few = int(both.sum())
        note = (
            ""
            if few >= ENOUGH_STEPS
            else f"only {few} clean step{'s' * (few > 1)}: read shares with care"
        )
        return _clean(lead, both, note)
    return None if _on_device(lead) else _unprofiled(lead, measured)


def _on_device(lead: Process) -> bool:
    """Whether steps last longer than they take on the host: then only windows that waited for the
    device at their end have a known length."""
    about = lead.last(TorchRecord)
    return about is not None and about.device is not None


def _ended(lead: Process) -> list[WindowRecord]:
    """The clean windows that ended."""
    return [w for w in lead.all(WindowRecord) if (w.name, w.state) == (BASELINE, "end")]


def _unprofiled(lead: Process, measured: npt.NDArray[np.bool_]) -> Clean | None:
    """A run too short for its baseline: the steps before it, if no prefetch queue was full yet."""
    if any(loader.num_workers for loader in lead.all(LoaderRecord)):
        return None  # batches fetched during start-up would make any loader look fast
    unprofiled = ~lead.steps.inside(PROFILED) & measured
    unprofiled[:COLD_STEPS] = False
    if unprofiled.sum() < FEWEST_STEPS:
        return None
    note = f"the run ended while warming up: judged by its steps 2 to {len(lead.steps)}"
    return _clean(lead, unprofiled, note)


def why_none(lead: Process | None, processes: Sequence[Process] = ()) -> str:
    """Why no step is clean, for the report."""
    if lead is None:
        if any(process.last(BoundaryRecord) for process in processes):
            return "only one training step was seen, and step times are measured from its end on"
        return "no training step was seen: nothing called backward or took batches from a loader"
    measured = len(lead.steps)
    steps = f"{measured + 1} training steps ({measured} measured)"  # the first starts the clock
    return f"the run ended after {steps}, before a clean one could be measured"


def make_steps(lead: Process, clean: Clean, boundary: str) -> Steps:
    """The clean step times."""
    kept = lead.steps.durations[clean.mask]
    return Steps(
        durations_ns=tuple(kept.tolist()),
        mean_ns=round((int(kept.sum()) + _drained_ns(lead, clean)) / len(kept)),
        median_ns=round(float(np.median(kept))),
        p90_ns=round(float(np.percentile(kept, 90))),
        count=len(kept),
        boundary=boundary,
        total_steps_seen=len(lead.steps),
    )


def _drained_ns(lead: Process, clean: Clean) -> int:
    """How long the device went on working after the last step of each clean window, ns."""
    after = {window.number: window.drained or 0 for window in _ended(lead)}
    return sum(after.get(number, 0) for number in set(_passes(lead)[clean.mask].tolist()))


def make_step_history(
    lead: Process, clean: Clean | None, loaders: Mapping[int, str]
) -> StepHistory:
    """``loaders``: loader id → ``train`` or ``eval``; other loaders begin no epoch."""
    return StepHistory(
        end_ns=tuple(lead.steps.end.tolist()),
        durations_ns=tuple(lead.steps.durations.tolist()),
        windows=tuple(lead.steps.window.tolist()),
        clean=tuple(clean.mask.tolist()) if clean else (False,) * len(lead.steps),
        epochs_ns=tuple(
            it.t for it in lead.all(IteratorRecord) if loaders.get(it.loader) == "train"
        ),
    )


def queued_frac(lead: Process, clean: Clean) -> float | None:
    """The share of the clean windows in which the training thread waited for a core, 0..1."""
    pairs = [
        (end.runq - begin.runq, end.t - begin.t)
        for begin, end in _windows(lead, clean)
        if begin.runq is not None and end.runq is not None
    ]
    wall = sum(ns for _, ns in pairs)
    return sum(queued for queued, _ in pairs) / wall if wall > 0 else None


def beside_frac(lead: Process, clean: Clean) -> float | None:
    """CPU time of the process's other Python threads in the clean windows ÷ their wall time, with
    those that ended in a window (a loader may start one for each epoch); None if not counted."""
    spent = wall = 0
    for begin, end in _windows(lead, clean):
        if begin.threads is not None and end.threads is not None:
            spent += sum(ns - begin.threads.get(tid, 0) for tid, ns in end.threads.items())
            if ENDED in end.threads:  # with all that they had spent before
                gone = begin.threads.keys() - end.threads.keys()
                spent -= sum(begin.threads[tid] for tid in gone)
            wall += end.t - begin.t
    return spent / wall if wall > 0 else None


def blocked_frac(lead: Process, clean: Clean) -> float | None:
    """The share of the clean windows in which the training thread was neither on a core nor ready
    for one, 0..1. None if not counted: a thread that never waits for a core is not counted."""
    blocked = queued = wall = 0
    for begin, end in _windows(lead, clean):
        if begin.cpu is None or end.cpu is None or begin.runq is None or end.runq is None:
            return None
        took, waited = end.t - begin.t, end.runq - begin.runq
        blocked += max(0, took - (end.cpu - begin.cpu) - waited)
        queued, wall = queued + waited, wall + took
    return blocked / wall if wall > 0 and queued > 0 else None


def busy_threads(process: Process) -> dict[int, float] | None:
    """For each other thread that Python started, by native id, the cores that it used from the
    first to the last window record that lists it; None if not counted. ``ENDED``: all that had
    ended."""
    seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for window in process.all(WindowRecord):
        for tid, ns in (window.threads or {}).items():
            seen[tid].append((window.t, ns))
    spans = {tid: (times[0], times[-1]) for tid, times in seen.items() if len(times) > 1}
    return {
        tid: (last[1] - first[1]) / max(1, last[0] - first[0])
        for tid, (first, last) in spans.items()
    } or None


def _windows(lead: Process, clean: Clean) -> Iterator[tuple[WindowRecord, WindowRecord]]:
    """The begin and end records of each judged clean window. Both are recorded a little after
    their step boundary."""
    begin: WindowRecord | None = None
    for window in lead.all(WindowRecord):
        if window.name == BASELINE and window.state == "begin":
            begin = window
        elif window.name == BASELINE and begin is not None and clean.holds(begin.t + 1):
            yield begin, window


def perturbation(lead: Process, clean: Clean) -> dict[str, float]:
    """Each profiled window's median step ÷ the clean median − 1."""
    durations = lead.steps.durations
    base = float(np.median(durations[clean.mask]))
    result = {}
    for window in PROFILED:
        mine = durations[lead.steps.inside({window}) & (durations > 0)]
        if len(mine) and base:
            result[window] = float(np.median(mine)) / base - 1
    return result


def _passes(lead: Process) -> npt.NDArray[np.int64]:
    """For each step the baseline pass that it belongs to, 0 = none."""
    begins = [w for w in lead.all(WindowRecord) if (w.name, w.state) == (BASELINE, "begin")]
    numbers = np.array([1, *(w.number for w in begins)])
    begun = np.searchsorted([w.t for w in begins], lead.steps.end)
    return np.where(lead.steps.inside({BASELINE}), numbers[begun], 0)


def _clean(lead: Process, mask: npt.NDArray[np.bool_], note: str = "") -> Clean:
    ends = lead.steps.end.tolist()
    begins = (lead.steps.end - lead.steps.durations).tolist()
    spans: list[tuple[int, int]] = []
    last = -2
    for i in np.flatnonzero(mask).tolist():
        begin, end = begins[i], ends[i]
        if i == last + 1:
            begin = spans.pop()[0]
        spans.append((begin, end))
        last = i
    return Clean(mask, tuple(spans), note)
