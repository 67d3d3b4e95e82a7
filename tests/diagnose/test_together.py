"""What several fixes win together: never the sum of what each wins alone."""

from __future__ import annotations

import pytest

from tdiag.diagnose.together import together
from tdiag.model.diagnosis import Component, Finding, Fix, MeasuredGain, Speedup

MS = 1_000_000
PARTS = {"data_wait": 60, "forward": 10, "backward": 20, "other": 10}
BUDGET = tuple(Component(name, ms * MS) for name, ms in PARTS.items())
NO_EFFECT = MeasuredGain("no effect", 1.0, 0.99, 1.01)
FASTER = MeasuredGain("faster", 1.25, 1.2, 1.3)


def fix(
    ms: float,
    *components: str,
    least: float | None = None,
    advisory: bool = False,
    measured: MeasuredGain | None = None,
) -> Finding:
    """It wins ``least`` (default: as much) to ``ms`` of a step of 100 ms."""
    low = ms if least is None else least
    return Finding(
        code="TD101", name="fix", cls="io", summary="", location=None, evidence=(),
        recoverable_ns=round(ms * MS), why_gain="", fix=Fix("", "safe"), components=components,
        speedup=Speedup(100 / (100 - low), 100 / (100 - ms)), advisory=advisory, measured=measured,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fixes", "low_ms", "high_ms"),
    [
        # Each wins its share of what the ones before it left, so the waste never runs out.
        (
            (
                fix(30, "data_wait", least=15),
                fix(45, "data_wait", least=0),
                fix(7, "data_wait", "other", least=-7),
            ),
            30 + (60 * 0.75 + 10) * 1.1,
            30 + (60 / 2 / 4 + 10) * 0.9,
        ),
        # What does not overlap adds up; an advisory wins nothing.
        (
            (fix(30, "data_wait"), fix(10, "backward"), fix(5, "backward", advisory=True)),
            60,
            60,
        ),
        # The first's high end is beyond its components: the rest of the step gets faster as well.
        (
            (fix(70, "data_wait"), fix(60, "data_wait"), fix(10, "backward")),
            30 * 30 / 40,
            30 * 30 / 40,
        ),
        # Measured: what a trial says counts, and not the prediction.
        (
            (fix(30, "data_wait", measured=NO_EFFECT), fix(45, "data_wait", measured=FASTER)),
            100 / 1.2,
            100 / 1.3,
        ),
    ],
    ids=["overlapping", "apart", "the rest faster", "measured"],
)
def test_all_at_their_low_and_all_at_their_high_ends(
    fixes: tuple[Finding, ...], low_ms: float, high_ms: float
) -> None:
    found = together(fixes, BUDGET)
    assert found is not None
    assert found.low == pytest.approx(100 / low_ms, abs=1e-3)
    assert found.high == pytest.approx(100 / high_ms, abs=1e-3)
    assert found.high >= max(fix.wins.high for fix in fixes if fix.wins)


def test_there_is_none_of_one_fix_or_of_unknown_components() -> None:
    assert together([fix(55, "data_wait"), fix(5, "other", advisory=True)], BUDGET) is None
    assert together([fix(55, "data_wait"), fix(5)], BUDGET) is None
    assert together([fix(55, "data_wait"), fix(5, "other")], ()) is None
