"""How far a share of samples is known."""

from __future__ import annotations

import random

import pytest

from tdiag.rules.base import known_to


@pytest.mark.parametrize(
    ("hits", "samples", "least", "most"),
    [
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (15, 148, 0.0624, 0.1605),
        (81, 263, 0.2553, 0.3662),
    ],
)
def test_as_newcombe_prints_it(hits: int, samples: int, least: float, most: float) -> None:
    """Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I."""
    assert known_to(hits / samples, samples) == pytest.approx((least, most), abs=5e-4)


def test_it_holds_the_truth_about_95_times_in_100() -> None:
    rng = random.Random(0)
    for truth in (0.05, 0.3, 0.83):
        held = 0
        for _ in range(1000):
            low, high = known_to(sum(rng.random() < truth for _ in range(200)) / 200, 200)
            held += low <= truth <= high
        assert 0.92 < held / 1000 < 0.98


def test_no_sample_tells_nothing() -> None:
    assert known_to(0.4, 0) == (0.0, 1.0)
    assert known_to(1.2, 50)[1] == 1.0, "shares of several lines may round up beyond all"
