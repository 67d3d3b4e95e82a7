"""What each epoch makes again, in the time that the marks give to the evaluation before it."""

from __future__ import annotations

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch
from tdiag.rules.examples import MS, environment, phases, stack, stacks

from .test_loop_lines import in_loop, tree

LOAD, BUILD = (9, 5), (31, 32, 33)


def judged(share: float, prepare: float = 0.5, phase: str = "") -> tuple[str, dict[str, int], list]:
    """``main`` calls ``build`` at 48, above the forward; three of its lines have this share of the
    samples each. An evaluation takes 45 of 100 ms by the marks. Class, budget, places."""
    frames = [("main", 50, -1, 0.3), ("main", 48, -1, 3 * share)]
    frames += [("build", line, 1, share) for line in BUILD]
    lines = stacks(tuple(stack(n, share, phase=phase, function="build") for n in BUILD))
    ns = 100 * MS
    wall = {"data_wait": 1.0, "prepare": prepare, "forward": 20.0, "backward": 28.0}
    wall |= {"optimizer": 100 - 45 - sum(wall.values()), "evaluation": 45.0}
    found = diagnose(
        Evidence().add(
            Steps(durations_ns=(ns,) * 50, mean_ns=ns, median_ns=ns, p90_ns=ns, count=50,
                  boundary="optimizer", total_steps_seen=90),
            phases(**wall), lines, in_loop(), tree(*frames), environment(),
            Dispatch(op_ns=1500, grad_op_ns=7000),
        )
    )  # fmt: skip
    places = [(f.code, f.location.line) for f in found.findings if f.location]
    return found.verdict.cls, {x.component: x.ns for x in found.budget}, places


def test_lines_above_the_forward_do_not_evaluate() -> None:
    cls, budget, places = judged(0.12)
    assert cls == "cpu"
    assert budget["evaluation"] < 15 * MS  # 45 minus the sure part of 36, and the ends add up
    assert sum(budget.values()) == 100 * MS
    assert ("TD713", 48) in places  # no line does most of it, so the line that calls it


@pytest.mark.parametrize(
    ("share", "prepare"),
    [
        (0.005, 0.5),  # too little to tell
        (0.12, 20.0),  # the time before the forward holds most of it: it makes batches
    ],
)
def test_an_evaluation_keeps_its_time(share: float, prepare: float) -> None:
    _, budget, _ = judged(share, prepare)
    assert budget["evaluation"] > 30 * MS
