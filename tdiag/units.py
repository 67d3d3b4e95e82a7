"""Numbers as people read them: three significant digits and a unit chosen by size."""

from __future__ import annotations

import math
from collections.abc import Sequence

_TIME = (("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9))
_SIZE = (("B", 1.0), ("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30), ("TiB", 2.0**40))
# A column in seconds starts at ten: parts of 0.014 s read worse than 14 ms of 1,060 ms.
_COLUMN_FROM = {"s": 1e10}

#: A speed-up below this would be shown as 1.00×: the fix may win nothing.
NO_GAIN = 1.005
#: A speed-up whose high end is this many times its low end is known from below alone: "1.2 to 21
#: times" says no more to a reader than "at least 1.2 times". Heuristic.
WIDE_RANGE = 4.0
#: Smaller differences of step times are noise: two runs of the same program, interleaved, differ by
#: a factor of 0.986 to 1.012 (A/A measurement, benchmarks/).
NOISE_FRAC = 0.02
#: Beyond ten times as much, a factor reads better than a percentage.
MANIFOLD_FRAC = 10.0


def significant(value: float) -> str:
    """``value`` with three significant digits and never an exponent below 1000."""
    if not math.isfinite(value):
        return str(value)
    digits = next((d for d, top in ((2, 9.995), (1, 99.95)) if abs(value) < top), 0)
    return f"{value:,.{digits}f}"


def _scaled(value: float, ladder: tuple[tuple[str, float], ...]) -> str:
    for unit, scale in ladder:
        # 999.6 would print as 1000 of this unit: the next one reads better.
        if abs(value) / scale < 999.5 or unit == ladder[-1][0]:
            whole = scale == 1.0 and float(value).is_integer()
            return f"{value:.0f} {unit}" if whole else f"{significant(value / scale)} {unit}"
    raise AssertionError("the ladder has no last rung")


def duration(ns: float) -> str:
    """Nanoseconds as ``850 ns``, ``31.2 ms``, ``1.50 s``."""
    return _scaled(ns, _TIME)


def size(n_bytes: float) -> str:
    """Bytes as ``512 B``, ``1.50 MiB``, ``3.20 GiB``."""
    return _scaled(n_bytes, _SIZE)


def percent(frac: float) -> str:
    """A share of 1 as ``62%``, ``3.4%`` below ten per cent, ``<0.1%`` for what is not nothing."""
    value = frac * 100
    if 0 < value < 0.1:
        return "<0.1%"
    return f"{value:.1f}%" if 0 < abs(value) < 9.95 else f"{value:.0f}%"


def per_step(ns: float, step_ns: float) -> str:
    """Time per step and its share of the step: ``36.0 ms per step (72%)``."""
    return f"{duration(ns)} per step ({percent(ns / step_ns)})"


def change(frac: float) -> str:
    """A relative difference as ``+38%``, ``-2.1%``; ``±0%`` where it rounds to nothing."""
    if abs(frac) < 0.0005:
        return "±0%"
    return ("+" if frac > 0 else "-") + percent(abs(frac))


def change_interval(ratio: float, low: float, high: float) -> str:
    """Ratios of a time to the one before, as changes: ``+4.1% [+2.9%, +5.5%]``."""
    return f"{ratio - 1:+.1%} [{low - 1:+.1%}, {high - 1:+.1%}]"


def disturbance(frac: float) -> str:
    """What a profiler cost: ``within noise``, ``+38%``, ``12× slower``."""
    if frac < NOISE_FRAC:
        return "within noise"
    return f"{1 + frac:,.0f}× slower" if frac > MANIFOLD_FRAC else change(frac)


def plural(number: float, one: str, many: str = "") -> str:
    """``1 step``, ``1,214 steps``; ``many`` where it is not ``one`` with an s."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def count(value: float) -> str:
    """A count as ``12,345``; a mean count keeps three significant digits at most: ``1.5``."""
    if float(value).is_integer():
        return f"{value:,.0f}"
    shown = significant(value) if abs(value) >= 1 else f"{value:.2g}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def only_from_below(low: float, high: float) -> bool:
    """A predicted speed-up is known from below alone: the range is too wide to say more of it."""
    return low >= NO_GAIN and high > WIDE_RANGE * low


def faster(low: float, high: float) -> str:
    """A predicted speed-up range as ``1.6–2.4×``; ``up to 1.20×`` where it may win nothing; ``at
    least 1.2×`` where the range is wide."""
    if low < NO_GAIN:
        return f"up to {_times(max(high, 1.0), high)}×"
    if only_from_below(low, high):
        return f"at least {_times(low, low)}×"
    # Both ends as fine as the low one needs, but no finer than the high one bears.
    ends = _times(low, low), _times(high, low if high < 1.995 else high)
    return f"about {ends[0]}×" if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}×"


def _times(value: float, fineness_of: float) -> str:
    digits = 2 if fineness_of < 1.2 else 1 if fineness_of < 9.95 else 0
    return f"{value:,.{digits}f}"


def between(low_ns: float, high_ns: float) -> str:
    """A range of durations with its unit said once where both ends share it."""
    low, high = duration(low_ns), duration(high_ns)
    if low == high:
        return f"about {low}"
    number, _, unit = low.partition(" ")
    return f"{number}–{high}" if high.endswith(f" {unit}") else f"{low} to {high}"


def quantity(value: float | int, unit: str) -> tuple[str, str]:
    """A measured number and its unit, apart, so that a table can align both: ``("31.3", "ms")``."""
    if unit == "ns":
        shown = duration(value)
    elif unit in ("bytes", "bytes_per_s"):
        shown = size(value) + ("/s" if unit == "bytes_per_s" else "")
    elif unit == "frac":
        shown = percent(value).replace("%", " %")
    else:
        words = {"count": "", "per_step": "per step", "gb_per_s": "GB/s"}
        shown = f"{count(value)} {words.get(unit, unit.replace('_', ' '))}"
    number, _, name = shown.partition(" ")
    return number, name


def apportion(parts: Sequence[float], whole: int) -> list[int]:
    """Share ``whole`` units among ``parts`` by largest remainder, so that they add up exactly.

    What a reader adds up in a table, or counts in a bar, is then the total that is printed.
    Negative parts count as nothing; no positive part gives all zeros.
    """
    clipped = [max(0.0, float(p)) for p in parts]
    total = sum(clipped)
    if not total:
        return [0] * len(clipped)
    exact = [p / total * whole for p in clipped]
    units = [math.floor(x) for x in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: units[i] - exact[i])
    for i in by_remainder[: whole - sum(units)]:
        units[i] += 1
    return units


def scale_for(ns: float) -> tuple[str, int, int]:
    """One unit and precision for a whole column whose total is ``ns``.

    Returns ``(unit, decimals, ns per last digit)`` so that the total shows about four digits.
    """
    unit, scale = next(
        ((unit, scale) for unit, scale in reversed(_TIME) if ns >= _COLUMN_FROM.get(unit, scale)),
        _TIME[0],
    )
    if unit == "ns":
        return unit, 0, 1
    decimals = max(0, 3 - int(math.log10(ns / scale)))
    return unit, decimals, round(scale / 10**decimals)
