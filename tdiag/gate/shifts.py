"""Where in a series the step time changed lastingly: change points, by ruptures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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
    import ruptures

    signal = np.log(np.array(steps_ns, float))
    noise = max(float(np.median(np.abs(np.diff(signal)))) / DEVIATION, LEAST_NOISE)
    search = ruptures.Pelt(model="l1", min_size=STRETCH, jump=1).fit(signal)
    ends = search.predict(pen=PENALTY * noise * math.log(len(signal)))
    bounds = [0, *map(int, ends)]
    levels = [statistics.median(steps_ns[start:end]) for start, end in pairwise(bounds)]
    # The last bound is the end of the series, where nothing changes.
    return [
        Shift(index, *heights)
        for index, heights in zip(bounds[1:-1], pairwise(levels), strict=True)
    ]
