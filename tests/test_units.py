"""Numbers: readable, correctly rounded, and adding up."""

from __future__ import annotations

import pytest

from tdiag.units import (
    apportion,
    between,
    change,
    count,
    disturbance,
    duration,
    faster,
    percent,
    plural,
    quantity,
    scale_for,
    size,
)


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (0, "0 ns"),
        (850, "850 ns"),
        (999_499, "999 µs"),
        (999_600, "1.00 ms"),
        (31_234_567, "31.2 ms"),
        (9_996_000, "10.0 ms"),
        (1_500_000_000, "1.50 s"),
        (7_200e9, "7,200 s"),
    ],
)
def test_durations(ns: float, shown: str) -> None:
    assert duration(ns) == shown


@pytest.mark.parametrize(
    ("n", "shown"), [(0, "0 B"), (1023.9, "1.00 KiB"), (1536, "1.50 KiB"), (2**40, "1.00 TiB")]
)
def test_sizes(n: float, shown: str) -> None:
    assert size(n) == shown


@pytest.mark.parametrize(
    ("frac", "shown"),
    [(0, "0%"), (0.0004, "<0.1%"), (0.034, "3.4%"), (0.0996, "10%"), (0.62, "62%"), (8.4, "840%")],
)
def test_shares(frac: float, shown: str) -> None:
    assert percent(frac) == shown


def test_changes_carry_their_sign() -> None:
    assert [change(x) for x in (0.384, -0.021, 0.0001)] == ["+38%", "-2.1%", "±0%"]


def test_counts() -> None:
    assert [count(x) for x in (12345, 1.5, 192.0, 2.333)] == ["12,345", "1.5", "192", "2.33"]


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (1.6, 2.4, "1.6–2.4×"),
        (1.05, 1.09, "1.05–1.09×"),
        (1.04, 4.11, "1.04–4.1×"),
        (1.16, 21.0, "at least 1.16×"),
        (1.12, 1.27, "1.12–1.27×"),
        (28.2, 103.4, "28–103×"),
        (8.2, 103.4, "at least 8.2×"),
        (11.8, 14.6, "12–15×"),
        (1.0, 1.02, "up to 1.02×"),
        (1.0, 3.0, "up to 3.0×"),
        (1.0, 12.0, "up to 12×"),
        (1.61, 1.63, "about 1.6×"),
    ],
)
def test_speedups(low: float, high: float, shown: str) -> None:
    assert faster(low, high) == shown


def test_ranges_say_a_shared_unit_once() -> None:
    assert between(18.8e6, 29.3e6) == "18.8–29.3 ms"
    assert between(980e3, 2e6) == "980 µs to 2.00 ms"
    assert between(2e6, 2e6) == "about 2.00 ms"


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (31_300_000, "ns", ("31.3", "ms")),
        (0.98, "frac", ("98", "%")),
        (2**21, "bytes", ("2.00", "MiB")),
        (2**21, "bytes_per_s", ("2.00", "MiB/s")),
        (13.7, "gb_per_s", ("13.7", "GB/s")),
        (192, "per_step", ("192", "per step")),
        (4, "count", ("4", "")),
        (2.9, "cores", ("2.9", "cores")),
    ],
)
def test_measures_split_into_number_and_unit(
    value: float, unit: str, shown: tuple[str, str]
) -> None:
    assert quantity(value, unit) == shown


@pytest.mark.parametrize("parts", [[1, 1, 1], [0.1] * 7, [1e9, 1], [5], [3, 0, -2, 4]])
@pytest.mark.parametrize("whole", [1, 10, 77, 1000])
def test_apportioned_parts_add_up_and_stay_within_one_of_their_share(
    parts: list[float], whole: int
) -> None:
    units = apportion(parts, whole)
    total = sum(p for p in parts if p > 0)
    assert sum(units) == whole
    assert all(abs(u - max(p, 0) / total * whole) < 1 for u, p in zip(units, parts, strict=True))


def test_nothing_to_apportion_is_no_units() -> None:
    assert apportion([0, 0], 10) == [0, 0]


@pytest.mark.parametrize("ns", [3, 740, 52_100, 5_213_000, 50_200_000, 502e6, 1.51e9, 9.9e9, 75e9])
def test_a_columns_scale_shows_the_total_to_about_four_digits(ns: float) -> None:
    unit, decimals, digit = scale_for(ns)
    assert digit == max(1, round({"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit] / 10**decimals))
    assert 1 <= ns / digit < 10_000
    assert unit == "s" if ns >= 1e10 else unit != "s"
    assert abs(round(ns / digit) * digit - ns) <= ns * 0.0005 + 0.5


@pytest.mark.parametrize(
    ("frac", "shown"),
    [(-0.3, "within noise"), (0.019, "within noise"), (0.384, "+38%"), (10, "+1000%"),
     (11.0, "12× slower"), (23.4, "24× slower")],
)  # fmt: skip
def test_disturbances(frac: float, shown: str) -> None:
    assert disturbance(frac) == shown


def test_one_is_singular() -> None:
    assert [plural(n, "step") for n in (0, 1, 1200)] == ["0 steps", "1 step", "1,200 steps"]
    assert plural(2, "advisory", "advisories") == "2 advisories"
