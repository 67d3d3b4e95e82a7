"""Whether a phase of the step takes longer from step to step, and by how much."""

from __future__ import annotations

from itertools import combinations
from math import sqrt

import numpy as np
import numpy.typing as npt

from tdiag.evidence.from_run.step_phases import PHASES, phases_per_step
from tdiag.evidence.from_run.timed import Timed
from tdiag.evidence.steps import PhaseGrowth, SlowingDown
from tdiag.model.threshold import NORMAL_95, Threshold
from tdiag.probe.wire import BASELINE

# Steps without a profiler are put into groups, and of each group the shortest time counts: what
# disturbs a step only makes it longer.
GROUPS = Threshold(
    8,
    "groups of steps",
    "By arithmetic: each half of eight groups has six pairs and so six slopes; each half of six has"
    " three.",
)
LEAST_IN_GROUP = Threshold(
    5,
    "steps",
    "By arithmetic: where other programs disturb half of the steps, all five are disturbed in"
    " one of 32 groups, so the shortest is nearly always undisturbed.",
)
HALF_FRAC = Threshold(
    0.5,
    "of the whole slope",
    "Heuristic: each half of the steps must grow so fast; a jump (another program began) leaves one"
    " half flat.",
)


def make_slowing_down(judged: Timed) -> SlowingDown | None:
    """None where too few steps were timed without a profiler."""
    steps = judged.process.steps
    rows = np.flatnonzero((steps.window == BASELINE) & (steps.durations > 0))
    if len(rows) < GROUPS * LEAST_IN_GROUP:
        return None
    table = phases_per_step(judged.timeline, judged.slices, judged.timeline.ns)
    groups = np.array_split(rows, int(GROUPS))
    at = np.array([steps.number[group].mean() for group in groups])
    shortest = np.array([table[group].min(axis=0) for group in groups])
    whole = table.sum(axis=1)
    grown = []
    for number, name in enumerate(PHASES):
        slope, least, most = slope_of(at, shortest[:, number])
        half = int(GROUPS) // 2
        halves = [slope_of(at[part], shortest[part, number])[0]
                  for part in (slice(None, half), slice(half, None))]  # fmt: skip
        rest = np.array([(whole[group] - table[group, number]).min() for group in groups])
        if least > 0 and min(halves) >= HALF_FRAC * slope and _alone(at, shortest[:, number], rest):
            grown.append(PhaseGrowth(phase=name, slope_ns=slope, least_ns=least, most_ns=most))
    grown.sort(key=lambda phase: -phase.slope_ns)
    return SlowingDown(
        phases=tuple(grown), first_step=int(steps.number[rows[0]]), last_step=int(at[-1])
    )


def _alone(
    at: npt.NDArray[np.float64], phase: npt.NDArray[np.int64], rest: npt.NDArray[np.int64]
) -> bool:
    """It grows as a part of the step. Where all phases take longer alike, the machine does: other
    programs, heat."""
    return slope_of(at, phase / np.maximum(rest, 1))[1] > 0


def slope_of(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.int64] | npt.NDArray[np.float64]
) -> tuple[float, float, float]:
    """Theil–Sen: the median slope of all pairs, and its 95 % interval (Sen 1968)."""
    pairs = combinations(range(len(x)), 2)
    slopes = sorted(float((y[b] - y[a]) / (x[b] - x[a])) for a, b in pairs)
    n = len(x)
    spread = NORMAL_95 * sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, int((len(slopes) - spread) / 2))
    return float(np.median(slopes)), slopes[low], slopes[len(slopes) - 1 - low]
