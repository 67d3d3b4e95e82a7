"""The measured numbers that a finding shows as evidence."""

from __future__ import annotations

from math import sqrt

from tdiag.model.diagnosis import Measure
from tdiag.model.threshold import NORMAL_95
from tdiag.units import percent

# Units a Measure may carry; reports know how to print each.
UNITS = frozenset(
    {"ns", "bytes", "frac", "count", "per_step", "gb_per_s", "bytes_per_s", "cores", "text"}
)
SOURCES = frozenset(
    {"baseline", "sample", "trace", "calls", "ops", "fetch", "system", "probe", "budget"}
)


def ns(name: str, value: float, source: str) -> Measure:
    return Measure(name, round(value), "ns", source)


def bytes_(name: str, value: float, source: str) -> Measure:
    return Measure(name, round(value), "bytes", source)


def frac(name: str, value: float, source: str) -> Measure:
    return Measure(name, round(value, 4), "frac", source)


def count(name: str, value: float, source: str, unit: str = "count") -> Measure:
    return Measure(name, round(value, 2), unit, source)


def text(name: str, value: str, source: str) -> Measure:
    return Measure(name, value, "text", source)


def sampling_range(samples: int, least: float, most: float) -> str:
    """``2,000 samples put the share between 59% and 63%``: the range of :func:`known_to`."""
    return f"{samples:,} samples put the share between {percent(least)} and {percent(most)}"


def known_to(share: float, samples: int) -> tuple[float, float]:
    """Least and greatest share of time, 0..1, for ``share`` of so many samples: 95 % confidence.

    Wilson's score interval for a proportion, which holds for few samples and for shares near 0 or
    1 (Brown, Cai, DasGupta 2001, "Interval estimation for a binomial proportion"). Not scipy's:
    importing it would cost a diagnosis a second.
    """
    if samples <= 0:
        return 0.0, 1.0
    share, z2 = min(1.0, share), NORMAL_95**2 / samples
    centre = (share + z2 / 2) / (1 + z2)
    half = sqrt(z2 * share * (1 - share) + z2 * z2 / 4) / (1 + z2)
    return max(0.0, centre - half), min(1.0, centre + half)
