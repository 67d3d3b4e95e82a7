"""The measured numbers that a finding shows as evidence."""

from __future__ import annotations

from tdiag.model.diagnosis import Measure

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
