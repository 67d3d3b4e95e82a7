"""Batches that another thread of Python's makes in the training process."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose import diagnose
from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Phases, Steps
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import (
    MS,
    budget,
    environment,
    op_line,
    ops,
    phases,
    stack,
    stacks,
    system,
    threads,
)
from tdiag.rules.waits import cores_beside

STEP = {"prepare": 40.0, "forward": 20.0, "backward": 35.0, "optimizer": 5.0}
STEPS = Steps(
    durations_ns=(100 * MS,) * 50, mean_ns=100 * MS, median_ns=100 * MS, p90_ns=100 * MS,
    count=50, boundary="optimizer", total_steps_seen=60,
)  # fmt: skip


def seen(beside_ms: float | None, own_ms: float = 2, **more: Any) -> Evidence:
    """The loop waits 40 ms at line 40 (``queue.get``); a thread works at lines 6 and 7."""
    clean = replace(
        phases(**STEP),
        cpu_ns={"prepare": own_ms * MS},
        beside_ns=None if beside_ms is None else beside_ms * MS,
    )
    waits = stack(40, 0.4, "<module> (me/train.py)", function="<module>")
    makes = (stack(6, 0.6, "make (me/train.py)", function="make"), stack(7, 0.3, function="make"))
    calls = ops(op_line(42, "forward", 6), op_line(44, "optimizer", 3))
    sampled: Stacks = replace(stacks((waits,)), beside=makes)
    return Evidence().add(budget(**STEP), STEPS, clean, environment(), system(), sampled, calls)


def found(code: str, evidence: Evidence) -> Finding | None:
    result = run_rule(find(code), evidence)
    return result if isinstance(result, Finding) else None


def test_the_line_of_the_thread_is_named_and_not_the_one_that_waits() -> None:
    evidence = seen(beside_ms=60)
    for code in ("TD214", "TD219"):
        finding = found(code, evidence)
        assert finding is not None and finding.location is not None
        assert finding.location.line == 6
        assert "hread" in finding.summary
    assert found("TD709", evidence) is None  # a line that waits runs no Python


def test_its_class_is_preprocessing() -> None:
    assert diagnose(seen(beside_ms=60)).verdict.cls == "cpu"


@pytest.mark.parametrize("beside_ms", [None, 5.0])
def test_a_wait_while_no_thread_works_is_not(beside_ms: float | None) -> None:
    evidence = seen(beside_ms)
    assert found("TD214", evidence) is None and found("TD219", evidence) is None
    assert diagnose(evidence).verdict.cls != "cpu"


def test_a_loop_that_makes_its_batches_itself_is_no_wait() -> None:
    """Another thread works, too: it logs."""
    evidence = seen(beside_ms=60, own_ms=38)
    made = evidence.get(Phases)
    assert made is not None and not made.made_beside
    finding = found("TD214", evidence)
    assert finding is not None and "in the loop" in finding.summary


@pytest.mark.parametrize(("cores_used", "beside"), [(1.9, 1.88), (0.7, 0.68)])
def test_cores_that_the_program_uses_beside_the_training_thread(
    cores_used: float, beside: float
) -> None:
    """Threads that Python has not started make the batches: only the cores show it. The training
    thread is on a core for 2 of 100 ms."""
    known = budget(**STEP), seen(None).get(Phases), system(cores_used=cores_used), threads(1)
    assert cores_beside(0.98, *known) == pytest.approx(beside)
