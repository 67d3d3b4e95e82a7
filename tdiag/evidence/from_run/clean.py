"""Which steps are clean: undisturbed by any profiler and by tdiag itself."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tdiag.evidence.from_run.events import Process
from tdiag.evidence.from_run.records import IteratorRecord, LoaderRecord, WindowRecord
from tdiag.evidence.from_run.slices import Step
from tdiag.evidence.history import StepHistory
from tdiag.evidence.kinds import Steps
from tdiag.probe.wire import BASELINE, PROFILED

# The second pass comes later, lasts longer and is stretched to whole epochs, so it is used alone
# once it has this many steps: then two of them lie beyond the ninth decile that is reported.
ENOUGH_STEPS = 20
# The very first step pays for memory pools, thread pools and lazily loaded libraries.
COLD_STEPS = 1
# Fewer say nothing about what is usual; a single one may be anything.
FEWEST_STEPS = 2


@dataclass(frozen=True)
class Clean:
    """``mask``: one entry a step of the lead process. ``spans``: (begin, end) of each unbroken
    stretch of clean steps, ns on the events' clock."""

    mask: npt.NDArray[np.bool_]
    spans: tuple[tuple[int, int], ...]
    note: str = ""

    def holds(self, moment: int) -> bool:
        """Whether this moment lies in a clean stretch (its end included)."""
        place = bisect_left(self.spans, moment, key=lambda span: span[1])
        return place < len(self.spans) and self.spans[place][0] <= moment


def find_clean(lead: Process, durations: list[int]) -> Clean | None:
    """The steps to judge by; None where there is none (see :func:`why_none`)."""
    measured = np.array(durations) > 0
    number = np.array(_passes(lead))
    first, second = (measured & (number == n) for n in (1, 2))
    if second.sum() >= ENOUGH_STEPS:
        return _clean(lead, durations, second)
    both = first | second
    if both.any():
        few = int(both.sum())
        note = (
            ""
            if few >= ENOUGH_STEPS
            else f"only {few} clean step{'s' * (few > 1)}: read shares with care"
        )
        return _clean(lead, durations, both, note)
    return _unprofiled(lead, durations, measured)


def _unprofiled(
    lead: Process, durations: list[int], measured: npt.NDArray[np.bool_]
) -> Clean | None:
    """A run too short for its baseline: the steps before it, if no queue was filled by then."""
    if any(loader.num_workers for loader in lead.all(LoaderRecord)):
        return None  # batches fetched ahead while starting would make any loader look quick
    unprofiled = np.array([step.w not in PROFILED for step in lead.steps]) & measured
    unprofiled[:COLD_STEPS] = False
    if unprofiled.sum() < FEWEST_STEPS:
        return None
    note = f"the run ended while warming up: judged by its steps 2 to {len(lead.steps)}"
    return _clean(lead, durations, unprofiled, note)


def why_none(lead: Process | None) -> str:
    """In the user's words, why no step is clean."""
    if lead is None:
        return "no training step was seen: nothing called backward or took batches from a loader"
    measured = len(lead.steps)
    steps = f"{measured + 1} training steps ({measured} measured)"  # the first starts the clock
    return f"the run ended after {steps}, before a clean one could be measured"


def make_steps(lead: Process, durations: list[int], clean: Clean, boundary: str) -> Steps:
    """The clean step times."""
    kept = np.array(durations, np.int64)[clean.mask]
    return Steps(
        durations_ns=tuple(kept.tolist()),
        mean_ns=round(int(kept.sum()) / len(kept)),
        median_ns=round(float(np.median(kept))),
        p90_ns=round(float(np.percentile(kept, 90))),
        count=len(kept),
        boundary=boundary,
        total_steps_seen=len(lead.steps),
    )


def make_step_history(
    lead: Process, durations: Sequence[int], clean: Clean | None, loaders: Mapping[int, str]
) -> StepHistory:
    """``loaders``: loader id → ``train`` or ``eval``; one that is not in it begins no epoch."""
    return StepHistory(
        end_ns=tuple(step.t for step in lead.steps),
        durations_ns=tuple(durations),
        windows=tuple(step.w for step in lead.steps),
        clean=tuple(clean.mask.tolist()) if clean else (False,) * len(lead.steps),
        epochs_ns=tuple(
            it.t for it in lead.all(IteratorRecord) if loaders.get(it.loader) == "train"
        ),
    )


def queued_frac(lead: Process, clean: Clean) -> float | None:
    """Share of the clean windows in which the training thread waited for a core."""
    begin: WindowRecord | None = None
    queued = wall = 0
    for window in lead.all(WindowRecord):
        if window.name != BASELINE or window.runq is None:
            continue
        if window.state == "begin":
            begin = window
        elif begin is not None and begin.runq is not None and clean.holds(window.t - 1):
            queued += window.runq - begin.runq
            wall += window.t - begin.t
    return queued / wall if wall > 0 else None


def perturbation(steps: list[Step], durations: list[int], clean: Clean) -> dict[str, float]:
    """Each profiled window's median step ÷ the clean median − 1."""
    base = float(np.median(np.array(durations)[clean.mask]))
    result = {}
    for window in PROFILED:
        mine = [ns for step, ns in zip(steps, durations, strict=True) if step.w == window and ns]
        if mine and base:
            result[window] = float(np.median(mine)) / base - 1
    return result


def _passes(lead: Process) -> list[int]:
    """For each step the pass of the baseline it lies in, 0 = in none."""
    begins = [w for w in lead.all(WindowRecord) if (w.name, w.state) == (BASELINE, "begin")]
    numbers = []
    for step in lead.steps:
        mine = [w.number for w in begins if w.t < step.t] if step.w == BASELINE else []
        numbers.append(mine[-1] if mine else int(step.w == BASELINE))
    return numbers


def _clean(
    lead: Process, durations: list[int], mask: npt.NDArray[np.bool_], note: str = ""
) -> Clean:
    spans: list[tuple[int, int]] = []
    last = -2
    for i in np.flatnonzero(mask).tolist():
        begin, end = lead.steps[i].t - durations[i], lead.steps[i].t
        if i == last + 1:
            begin = spans.pop()[0]
        spans.append((begin, end))
        last = i
    return Clean(mask, tuple(spans), note)
