"""What a stored baseline is compared by: the mixture of work that its step follows."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from tdiag.duel.estimate import unpaired
from tdiag.gate import yardstick
from tdiag.gate.stored import Times, _gauged, _mixture


def groups(number: int, step: Sequence[float], slower: float, seed: int) -> Times:
    """Of one turn each: the step follows the kinds' drift with the powers ``step``."""
    draw = random.Random(seed)
    drift = [[draw.gauss(0, 0.08) for _ in yardstick.KINDS] for _ in range(number)]
    own = [draw.gauss(0, 0.01) for _ in drift]
    logs = [sum(p * d for p, d in zip(step, row, strict=True)) for row in drift]
    steps = [[1e7 * slower * math.exp(x + y)] for x, y in zip(logs, own, strict=True)]
    gauges = {
        kind: [[1e6 * math.exp(row[i])] for row in drift] for i, kind in enumerate(yardstick.KINDS)
    }
    return Times(steps, steps, gauges)


def test_the_mixture_is_the_one_that_the_step_follows() -> None:
    assert _mixture(groups(20, (0.0, 0.7, 0.3), 1, 1)) == {
        "interpreter": 0.0,
        "arithmetic": 0.7,
        "memory": 0.3,
    }
    assert sum(_mixture(groups(5, (0.2, 0.2, 0.2), 1, 2)).values()) == pytest.approx(1)


@pytest.mark.parametrize(("slower", "answer"), [(1.0, "same"), (1.1, "slower")])
def test_it_tells_the_script_from_the_machine(slower: float, answer: str) -> None:
    then, now = groups(20, (0.1, 0.9, 0), 1, 3), groups(10, (0.1, 0.9, 0), slower, 4)
    equal = dict.fromkeys(yardstick.KINDS, 1 / 3)
    by_mixture, in_equal_parts = (
        unpaired(_gauged(then.typical, then.gauges, m), _gauged(now.typical, now.gauges, m)).answer(
            0.05
        )
        for m in (_mixture(then), equal)
    )
    assert by_mixture == answer
    assert in_equal_parts == "unclear"
