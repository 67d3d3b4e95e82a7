"""Where in a series the step time changed lastingly: change points."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

FEWEST = 10  # checks: fewer cannot distinguish a change from noise at the penalty below
# Checks on either side: a single outlier is no change, however large, because a stretch's cost is
# about its median, which one of three does not move.
STRETCH = 3
# In noise × log(number of checks). Tested on series of pure noise (normal, and Student's t with 3
# degrees of freedom): a change is marked in 1.5 % of 300 series of 10 checks and in none of 200 of
# 30; a change of four times the noise's deviation is found in 90 % of series of 10 and in all of
# 30.
PENALTY = 3.0
DEVIATION = 0.6745 * math.sqrt(2)  # median |difference| of normal noise ÷ its standard deviation
LEAST_NOISE = 0.001  # of the step: times are reported to three digits


@dataclass(frozen=True)
class Shift:
    """From check ``index`` on. ``before_ns``, ``now_ns``: the median step of the stretches between
    this change and its neighbours."""

    index: int
    before_ns: float
    now_ns: float

    @property
    def change(self) -> float:
        """0.08: slower by 8 %."""
        return self.now_ns / self.before_ns - 1


def shifts(steps_ns: Sequence[float]) -> list[Shift]:
    """The changes of level in step times, in order; none with fewer than ``FEWEST``.

    PELT (Killick et al. 2012) over the logarithms, with the absolute error about the median as a
    stretch's cost. The noise is estimated from the differences of neighbours, which a change of
    level hardly affects.
    """
    if len(steps_ns) < FEWEST:
        return []
    import numpy as np

    signal = np.log(np.array(steps_ns, float))
    noise = max(float(np.median(np.abs(np.diff(signal)))) / DEVIATION, LEAST_NOISE)
    bounds = _bounds(signal, PENALTY * noise * math.log(len(signal)))
    levels = [statistics.median(steps_ns[start:end]) for start, end in pairwise(bounds)]
    # The last bound is the end of the series, where nothing changes.
    return [
        Shift(index, *heights)
        for index, heights in zip(bounds[1:-1], pairwise(levels), strict=True)
    ]


def _bounds(signal: np.ndarray, penalty: float) -> list[int]:
    """Where the stretches of the best partition begin, and where the last one ends.

    PELT: the best partition of each beginning of the series is its last stretch after the best
    partition of what is before; a start that costs more than ``penalty`` above the best now never
    becomes the best.
    """
    import numpy as np

    best, before, starts = {0: -penalty}, {}, [0]
    for end in range(STRETCH, len(signal) + 1):
        costs = {}
        for start in starts:
            stretch = signal[start:end]
            costs[start] = best[start] + float(np.abs(stretch - np.median(stretch)).sum())
        before[end] = min(costs, key=lambda start: costs[start])
        best[end] = costs[before[end]] + penalty
        starts = [start for start in starts if costs[start] <= best[end]]
        if end + 1 - STRETCH in best:
            starts.append(end + 1 - STRETCH)
    bounds = [len(signal)]
    while bounds[-1]:
        bounds.append(before[bounds[-1]])
    return bounds[::-1]
