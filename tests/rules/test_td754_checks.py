"""Checks of distributions: which frames are checks, and at which lines they are made."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import at, budget

RULE = find("TD754")
FOLDER = "site-packages/torch/distributions/"


def tree(*frames: tuple[str, str, int, float]) -> CallTrees:
    """Name, file, caller and share of the samples; without a dot in the file the user's."""
    return CallTrees(
        training=tuple(
            CallFrame(
                name=name, file=f"{FOLDER}{file}" if "." in file else at(1).file,
                line=0 if "." in file else int(file), parent=parent, frac=share,
                user="." not in file,
            )
            for name, file, parent, share in frames
        ),
        workers=(),
    )  # fmt: skip


def test_what_a_check_calls_is_counted_once_and_at_the_line_with_most() -> None:
    trees = tree(
        ("main", "90", -1, 1.0),
        ("forward", "30", 0, 0.2),
        ("Normal.__init__", "normal.py", 1, 0.2),
        ("Distribution.__init__", "distribution.py", 2, 0.15),
        ("_GreaterThan.check", "constraints.py", 3, 0.1),
        ("loss", "50", 0, 0.3),
        ("Normal.log_prob", "normal.py", 5, 0.3),
        ("_validate_sample", "distribution.py", 6, 0.05),
    )
    found = run_rule(RULE, RULE.fires().add(trees))
    assert isinstance(found, Finding) and found.location
    assert found.location.line == 30
    assert found.evidence[0].value == pytest.approx(0.2)


def test_what_is_drawn_is_no_check() -> None:
    trees = tree(
        ("act", "30", -1, 1.0),
        ("Distribution.sample", "distribution.py", 0, 0.4),
        ("Normal.rsample", "normal.py", 1, 0.4),
    )
    assert run_rule(RULE, RULE.fires().add(trees)) is None


def test_on_a_device_the_wait_is_another_rules() -> None:
    trees = RULE.fires().get(CallTrees)
    assert trees is not None
    step = replace(budget(forward=40, loss=20, backward=40), has_device=True)
    assert run_rule(RULE, RULE.fires().add(step, trees)) is None
