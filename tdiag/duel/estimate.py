"""How much slower, with what confidence, and whether that answers the question.

A process has a constant bias (its memory layout), so groups of fresh processes are independent of
each other, but single turns are not. The spread comes from a bootstrap that resamples groups, each
with all of its turns: groups already differ by the noise of their turns, so resampling the turns as
well would count it twice (Davison & Hinkley, *Bootstrap Methods*, 1997, 3.8).
The interval is centre ± t × that spread with the degrees of freedom of the groups, which
percentiles of so few would make too narrow (Hesterberg, *What Teachers Should Know about the
Bootstrap*, The American Statistician 69, 2015, 4.1).

The interval is checked up to three times, and stopping at the first clear answer would inflate
errors; hence Pocock's constant nominal level for three looks at equal distances (Pocock, Biometrika
64, 1977; Jennison & Turnbull 2000, table 2.1: 2.289).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Answer = Literal["slower", "faster", "same", "unclear"]

NOMINAL_LEVEL = 0.0221  # of one look, for 0.05 of all together: 2 × (1 − Φ(2.289))
RANK_LEVEL = 0.05
RESAMPLES = 1000  # relative error of a standard error from 1,000: 1/√(2·1000) = 2 %
MORE_AT_MOST = 1000  # groups; beyond this the answer is "not by repeating"


@dataclass(frozen=True)
class Looks:
    """The numbers of groups after which the interval is checked. After ``until_s`` (of
    :func:`time.monotonic`) the next check is the last; this depends on no result."""

    at: tuple[int, ...]
    until_s: float = math.inf

    def due(self, groups: int) -> bool:
        return groups in self.at or self.last(groups)

    def last(self, groups: int) -> bool:
        over = monotonic() > self.until_s and groups >= self.at[0]
        return over or groups >= self.at[-1]


LOOKS = Looks((5, 10, 15))  # five are the fewest whose rank test can reach RANK_LEVEL (1/2⁵)


@dataclass(frozen=True)
class Estimate:
    """``ratio``: step time now ÷ before; ``low``, ``high``: its interval, error ``NOMINAL_LEVEL``.
    ``p_slower``: rank test of "not slower". ``groups``: number of fresh-process groups (the smaller
    side's)."""

    ratio: float
    low: float
    high: float
    p_slower: float
    groups: int

    def answer(self, threshold: float) -> Answer:
        """``threshold``: the smallest change that matters, 0.05 = 5 %. ``same``: certainly smaller
        than that. ``faster`` is as certain as ``slower`` and counts as "not slower"."""
        if self.low > 1 + threshold:
            return "slower" if self.p_slower < RANK_LEVEL else "unclear"
        if self.high > 1 + threshold:
            return "unclear"
        return "faster" if self.high < 1 / (1 + threshold) else "same"

    def more_groups(self, threshold: float) -> int | None:
        """About how many more groups would decide it if the ratio stays: an interval narrows with
        the root of their number. None if no feasible number would."""
        distance = abs(math.log(self.ratio) - math.log1p(threshold))
        half = (math.log(self.high) - math.log(self.low)) / 2
        if half <= 0:
            return 1
        needed = self.groups * (half / distance) ** 2 if distance else math.inf
        more = max(1.0, needed - self.groups)
        return math.ceil(more) if more <= MORE_AT_MOST else None


@dataclass(frozen=True)
class Ratios:
    """``typical``: of median steps. ``mean``: of mean steps, one per group, which include work that
    only some steps do."""

    typical: Estimate
    mean: Estimate

    def answer(self, threshold: float) -> Answer:
        """The typical step's answer; or ``slower`` if only the mean shows it, a slow-down of few
        steps. The mean is noisier, so it never makes a clear answer unclear."""
        if self.mean.answer(threshold) == "slower":
            return "slower"
        return self.typical.answer(threshold)


def paired(ratios: Sequence[Sequence[float]]) -> Estimate:
    """From the ratios now ÷ before of each turn in each group."""
    from scipy import stats

    groups = [np.log(np.asarray(group, np.float64)) for group in ratios]
    centre, error = _centre(groups), _error(groups)
    medians = [float(np.median(group)) for group in groups]
    # All equal: no evidence, and the test would refuse to compute.
    p = float(stats.wilcoxon(medians, alternative="greater").pvalue) if any(medians) else 1.0
    return _estimate(centre, error, len(groups) - 1, p, len(groups))


def unpaired(before: Sequence[Sequence[float]], now: Sequence[Sequence[float]]) -> Estimate:
    """From the values of each turn in each group, of two measurements at different times
    (Welch)."""
    from scipy import stats

    sides = [[np.log(np.asarray(g, np.float64)) for g in side] for side in (before, now)]
    errors = [_error(side) for side in sides]
    variances = [error**2 for error in errors]
    medians = [[float(np.median(group)) for group in side] for side in sides]
    p = float(stats.mannwhitneyu(medians[1], medians[0], alternative="greater").pvalue)
    parts = [v**2 / (len(side) - 1) for v, side in zip(variances, sides, strict=True)]
    freedom = sum(variances) ** 2 / sum(parts) if sum(parts) else 1.0
    centre = _centre(sides[1]) - _centre(sides[0])
    return _estimate(centre, math.hypot(*errors), freedom, p, min(map(len, sides)))


def _estimate(centre: float, error: float, freedom: float, p: float, groups: int) -> Estimate:
    from scipy import stats

    half = float(stats.t.ppf(1 - NOMINAL_LEVEL / 2, freedom)) * error
    return Estimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half), p, groups)


def _centre(groups: Sequence[Floats]) -> float:
    """The median over all turns."""
    return float(np.median(np.concatenate(groups)))


def _error(groups: Sequence[Floats]) -> float:
    """Standard error of the centre. √(n/(n−1)): resampling n groups spreads by the variance with
    n in its denominator (Hesterberg 2015, 3.2)."""
    draw = np.random.default_rng(0)
    n, longest = len(groups), max(map(len, groups))
    padded = np.full((n, longest), np.nan)
    for row, group in zip(padded, groups, strict=True):
        row[: len(group)] = group
    drawn = padded[draw.integers(n, size=(RESAMPLES, n))].reshape(RESAMPLES, -1)
    centres = np.nanmedian(drawn, axis=1)
    return float(centres.std()) * math.sqrt(n / (n - 1))
