"""The interval covers, the answers follow from it, and looking thrice does not inflate errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tdiag.duel.estimate import LOOKS, Estimate, Looks, Ratios, paired, unpaired


def groups(draw: np.random.Generator, n: int, effect: float, spread: float) -> list[list[float]]:
    """Ratios of turns: a bias of each group, and noise of each turn."""
    return [
        list(np.exp(math.log1p(effect) + draw.normal(0, spread) + draw.normal(0, 0.05, 20)))
        for _ in range(n)
    ]


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    found = [paired(groups(draw, 5, 0.03, 0.02)) for _ in range(40)]
    # Nominal 97.8 %: of 40 at most 5 may miss but for one case in ten thousand.
    assert sum(e.low <= 1.03 <= e.high for e in found) >= 35
    # And it is no wider than t and the spread make it: all wide enough would be no feat.
    widths = [math.log(e.high / e.low) for e in found]
    expected = 2 * 3.6 * math.hypot(0.02, 1.25 * 0.05 / math.sqrt(20)) / math.sqrt(5)
    assert np.median(widths) == pytest.approx(expected, rel=0.35)


def test_the_turns_noise_is_not_counted_twice() -> None:
    """Without any bias of groups the spread is that of the median over all turns, no more."""
    draw = np.random.default_rng(4)
    found = [paired(groups(draw, 10, 0.0, 0.0)) for _ in range(30)]
    halves = [math.log(e.high / e.low) / 2 for e in found]
    expected = 2.75 * 1.25 * 0.05 / math.sqrt(10 * 20)  # t of 9 degrees of freedom
    assert np.median(halves) == pytest.approx(expected, rel=0.2)  # twice counted: 1.41 times


def test_many_turns_of_few_groups_do_not_make_it_narrow() -> None:
    """What is independent is a group: turns of one share its bias."""
    draw = np.random.default_rng(1)
    few = paired([list(np.exp(draw.normal(b, 0.001, 1000))) for b in (0.03, -0.02, 0.0, 0.04, 0.1)])
    assert few.high / few.low > 1.1


def test_three_looks_at_nothing_hardly_ever_alarm() -> None:
    draw = np.random.default_rng(2)
    alarms = 0
    for _ in range(20):
        taken = groups(draw, LOOKS.at[-1], 0.0, 0.02)
        alarms += any(paired(taken[:n]).answer(0.001) == "slower" for n in LOOKS.at)
    assert alarms <= 3  # at the threshold itself 2.5 % are expected: one half


@pytest.mark.parametrize(
    ("low", "high", "p", "answer"),
    [
        (1.06, 1.10, 0.01, "slower"),
        (1.06, 1.10, 0.20, "unclear"),  # the interval says it, the ranks do not
        (1.02, 1.10, 0.01, "unclear"),
        (0.99, 1.04, 0.50, "same"),
        (0.90, 0.94, 0.99, "faster"),
        (0.90, 1.20, 0.50, "unclear"),
    ],
)
def test_only_a_whole_interval_beyond_the_threshold_fails(
    low: float, high: float, p: float, answer: str
) -> None:
    assert Estimate(math.sqrt(low * high), low, high, p, 5).answer(0.05) == answer


def test_how_many_more_would_settle_it() -> None:
    wide = Estimate(1.02, 1.02 / 1.04, 1.02 * 1.04, 0.1, 5)
    more = wide.more_groups(0.05)
    # Half-width ln 1.04 has to shrink to ln(1.05/1.02): (0.0392/0.0290)² × 5 − 5 = 4.2
    assert more == 5
    on_it = Estimate(1.05, 1.05 / 1.04, 1.05 * 1.04, 0.1, 5)
    assert on_it.more_groups(0.05) is None


def test_a_slow_down_of_few_steps_is_told_by_the_mean() -> None:
    typical = Estimate(1.0, 0.99, 1.01, 0.5, 5)
    slow, noisy = Estimate(1.3, 1.2, 1.4, 0.03, 5), Estimate(1.1, 0.7, 1.5, 0.3, 5)
    assert Ratios(typical, slow).answer(0.05) == "slower"
    assert Ratios(typical, noisy).answer(0.05) == "same"


def test_past_its_time_the_next_look_is_the_last() -> None:
    over = Looks((5, 10, 15), until_s=0.0)
    assert [n for n in range(1, 8) if over.due(n)] == [5, 6, 7] and over.last(5)
    assert [n for n in range(1, 20) if LOOKS.due(n)] == [5, 10, *range(15, 20)]
    assert not LOOKS.last(10) and LOOKS.last(15)


def test_identical_sides_are_the_same() -> None:
    alike = paired([[1.0] * 5] * 5)
    assert (alike.ratio, alike.low, alike.high) == (1.0, 1.0, 1.0)
    assert alike.answer(0.01) == "same"


def test_two_measurements_at_different_times() -> None:
    draw = np.random.default_rng(3)
    before, now = groups(draw, 10, 0.0, 0.02), groups(draw, 5, 0.2, 0.02)
    found = unpaired(before, now)
    assert found.low < 1.2 < found.high and found.low > 1.05
    assert found.p_slower < 0.01 and found.groups == 5
