"""How long the work around the step takes in the clean steps, compared with the sampled ones."""

from __future__ import annotations

import numpy as np
import pytest

from tdiag.evidence.from_run.step_phases import PHASES
from tdiag.evidence.from_run.timed import around_scale


@pytest.mark.parametrize(
    ("sampled", "clean", "expected"),
    [
        ([4] * 20, [12] * 20, 2.0),  # it grew from a quarter of the step to a half
        ([12] * 20, [12] * 20, 1.0),
        ([1] * 20, [1] * 19 + [61], 1.0),  # an epoch ended in the clean steps only
        ([1] * 19 + [61], [1] * 19 + [81], 1.0),
    ],
)
def test_work_around_the_step_that_was_sampled_when_it_was_shorter(
    sampled: list[int], clean: list[int], expected: float
) -> None:
    table = np.zeros((40, len(PHASES)), np.int64)
    table[:, PHASES.index("forward")] = 12
    table[:, PHASES.index("after_step")] = [*sampled, *clean]
    first = np.arange(40) < 20
    assert around_scale(table, ~first, first) == pytest.approx(expected)


def test_clean_steps_without_anything_else() -> None:
    """A scheduler stepped while stacks were sampled, once in many steps."""
    table = np.zeros((40, len(PHASES)), np.int64)
    table[:, PHASES.index("backward")] = 12
    table[5, PHASES.index("after_step")] = 4
    first = np.arange(40) < 20
    assert around_scale(table, ~first, first) == 0.0
