"""What is overhead: collections, and work after the step under its own name."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.rules.examples import MS, phases

from .test_verdict import finding, run


def test_what_is_collected_during_a_fetch_is_preprocessing() -> None:
    parts = {"gc": 50, "data_wait_cpu": 30}
    freed = replace(finding("overhead", 0.4, high=0.5), components=("gc",))
    assert run(parts, findings=(freed,)).cls == "overhead"
    waiting = replace(phases(data_wait=30, forward=20), gc_in_wait_ns=45.0 * MS)
    found = run(parts, waiting, findings=(freed,))
    assert (found.cls, found.share) == ("cpu", pytest.approx(0.75))


def test_work_after_the_step_is_not_called_python_and_dispatch() -> None:
    """Weights normalised anew, for example: that may be one large call."""
    after = replace(finding("overhead", 0.7), components=("other",))
    assert (
        "goes to work after the optimizer's step" in run({"other": 75}, findings=(after,)).summary
    )
    collected = run({"gc": 75, "other": 5}).summary
    assert "goes to Python, dispatch and framework overhead" in collected


def test_the_overhead_of_the_optimizers_step_is_named_so() -> None:
    """If it is the largest of the overhead."""
    update = replace(finding("overhead", 0.5), components=("optimizer",))
    forward = replace(finding("overhead", 0.3), components=("forward",))
    named = "goes to the optimizer's step: Python and calls that do little work"
    assert named in run({"optimizer": 60}, findings=(forward, update)).summary
    larger = replace(finding("overhead", 0.7), components=("forward",))
    assert named not in run({"optimizer": 60}, findings=(larger, update)).summary
