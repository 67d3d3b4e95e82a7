"""A Python thread beside the training holds the interpreter's lock: every phase waits for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose import diagnose
from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.model.place import Place
from tdiag.rules.catalogue import find
from tdiag.rules.examples import (
    MS,
    at,
    budget,
    environment,
    loaders,
    op_line,
    ops,
    phases,
    roofline,
    stack,
    stacks,
    system,
    threads,
)

RULE = find("TD723")
STEP = {"data_wait": 20.0, "forward": 30.0, "backward": 30.0, "optimizer": 20.0}
STEPS = Steps(
    durations_ns=(100 * MS,) * 50, mean_ns=100 * MS, median_ns=100 * MS, p90_ns=100 * MS,
    count=50, boundary="optimizer", total_steps_seen=60,
)  # fmt: skip


def run(
    blocked_ms: float | None, beside_ms: float = 99, beside: Stacks | None = None, **step: float
) -> Evidence:
    """A step of 100 ms; threads work at line 12."""
    parts = step or STEP
    clean = replace(
        phases(**parts),
        cpu_ns={},
        blocked_ns=None if blocked_ms is None else blocked_ms * MS,
        beside_ns=beside_ms * MS,
    )
    sampled = beside or replace(stacks(), beside=(stack(12, 0.9, function="watch"),))
    renamed = {"data_wait_cpu" if name == "data_wait" else name: ms for name, ms in parts.items()}
    working = ops(op_line(20, "forward", 20, grad_calls=20.0))  # ms of work a call
    kinds = (budget(**renamed), STEPS, clean, environment(), system(), sampled, working,
             Dispatch(op_ns=1500, grad_op_ns=6000))  # fmt: skip
    return Evidence().add(*kinds, *roofline(best_ms=75))


def found(evidence: Evidence) -> Finding:
    result = run_rule(RULE, evidence)
    assert isinstance(result, Finding), result
    return result


def test_the_line_of_the_thread_is_named_and_all_that_is_blocked_is_at_stake() -> None:
    """90 ms blocked: at least 70 of 80 ms of computing, and as much of the data wait."""
    finding = found(run(90))
    assert finding.location is not None and finding.location.line == 12
    assert finding.at_best_ns == pytest.approx((90 - 20 * (1 - 70 / 80)) * MS)
    assert finding.speedup is not None
    assert finding.speedup.low == pytest.approx(1 / (1 - 0.35), 0.01)


def test_a_fetch_in_the_training_process_waits_no_longer_than_it_is_blocked() -> None:
    """25 ms blocked, of the fetch 10 % of 20 ms."""
    fetched = loaders(num_workers=0, load_ns=18.0 * MS, load_cpu_ns=18.0 * MS, collate_ns=2.0 * MS,
                      collate_cpu_ns=0.0, runqueue_ns=0.0)  # fmt: skip
    evidence = run(25)
    assert isinstance(run_rule(RULE, evidence), Finding)
    little = run(24)
    assert run_rule(RULE, little) is None
    finding = found(little.add(fetched))
    assert finding.at_best_ns == 24 * MS
    assert finding.speedup is not None
    assert finding.speedup.low == pytest.approx(1 / (1 - 0.11), 0.01)


def test_no_more_than_the_threads_work_is_at_stake() -> None:
    assert found(run(90, beside_ms=40)).at_best_ns == 40 * MS


def test_the_run_is_not_healthy_and_its_class_is_overhead() -> None:
    """The same run is healthy if the thread releases the lock."""
    quiet = {"data_wait": 3.0, "forward": 40.0, "backward": 40.0, "optimizer": 17.0}
    assert diagnose(run(2, **quiet)).verdict.healthy
    assert diagnose(run(90)).verdict.cls == "overhead"
    little = diagnose(run(15, **quiet)).verdict
    assert (little.cls, little.healthy) == ("overhead", False)


@pytest.mark.parametrize(
    ("blocked_ms", "beside_ms"),
    [
        (20, 99),  # as long as the data wait, which may be waiting for workers
        (90, 3),  # something else: no thread works
    ],
)
def test_a_wait_that_something_else_may_cause_is_left_alone(
    blocked_ms: float, beside_ms: float
) -> None:
    assert run_rule(RULE, run(blocked_ms, beside_ms)) is None


def test_waits_for_other_ranks_and_files_are_theirs() -> None:
    """A wait of 40 ms for other ranks and for the disk, and of 20 ms for the interpreter."""
    parts = {"comm": 30.0, "checkpoint": 10.0, "forward": 30.0, "backward": 30.0}
    assert found(run(60, **parts)).at_best_ns == 20 * MS


def test_without_the_threads_time_on_a_core_it_abstains() -> None:
    assert isinstance(run_rule(RULE, run(None)), Abstained)


def test_on_a_device_the_thread_may_wait_for_the_device() -> None:
    evidence = run(90)
    assert run_rule(RULE, evidence.add(budget(device=True, compute=100))) is None


def test_the_line_in_which_the_thread_sleeps_does_no_work(tmp_path: Path) -> None:
    script = tmp_path / "watch.py"
    script.write_text("time.sleep(1)\ntotal += value\n")
    beside = tuple(
        replace(stack(0, share), at=at(line, "watch", str(script)))
        for line, share in ((1, 0.8), (2, 0.2))
    )
    finding = found(run(90, beside=replace(stacks(), beside=beside)))
    assert finding.location is not None and finding.location.line == 2


def test_a_loop_that_waits_as_much_elsewhere_waits_for_no_batch() -> None:
    """Batches sliced from tensors, 10 ms before the forward, of which a thread takes 9."""
    prepared = replace(
        phases(prepare=10, forward=50, backward=40), cpu_ns={"prepare": MS}, beside_ns=99 * MS
    )
    assert prepared.made_beside, "as far as is known"
    assert not replace(prepared, blocked_ns=90 * MS).made_beside
    assert replace(prepared, blocked_ns=10 * MS).made_beside


def crowded(queued: float, beside_ms: float = 40, **more: Any) -> Evidence:
    """A step that computes for 100 ms on two cores with two threads, of which the training thread
    is ready and off its core for this share of the time; others work at line 12."""
    evidence = run(0, beside_ms, forward=40.0, backward=50.0, optimizer=10.0)
    seen = system(cores_allowed=2.0, training_queued_frac=queued, cores_used=1.9,
                  machine_busy_cores=1.9)  # fmt: skip
    return evidence.add(seen, threads(2), *more.values())


def test_threads_that_use_the_cores_hold_computing_up_without_the_lock() -> None:
    """NumPy gives the lock back and works on, on a core that one of torch's threads needs."""
    held = found(crowded(0.3))
    assert "waits for a core: 30.0 ms per step (30%) at least" in held.summary
    assert held.location == at(12, "watch")
    assert held.recoverable_ns > 15 * MS
    assert held.cls == "overhead" and "keep its results" in held.fix.text
    # No more than they run, and not beside workers, which may have had the core.
    assert "(20%) at least" in found(crowded(0.3, beside_ms=20)).summary
    assert run_rule(RULE, crowded(0.3, loader=loaders(num_workers=2))) is None
    assert run_rule(RULE, crowded(0.01)) is None


@pytest.mark.parametrize(
    ("line", "leaf", "cls"),
    [
        ("queue.put(made)", "Condition.wait (python3.11/threading.py)", "cpu"),
        ("queue.join()", "Condition.wait (python3.11/threading.py)", "overhead"),
        ("cache.put(made)", "dumps (json/encoder.py)", "overhead"),  # it waits for no room
    ],
)
def test_a_thread_that_fills_a_queue_prepares_batches(
    tmp_path: Path, line: str, leaf: str, cls: str
) -> None:
    script = tmp_path / "feed.py"
    script.write_text(line)
    waits = stack(1, 0.5, leaf)
    waits = replace(waits, at=Place(file=str(script), line=1))
    sampled = replace(stacks(), beside=(stack(12, 0.9, function="watch"),), others=(waits,))
    evidence = crowded(0.3, sampled=sampled)
    assert found(evidence).cls == cls
    verdict = diagnose(evidence).verdict
    assert (verdict.cls, verdict.share) == (cls, pytest.approx(0.3, abs=0.02)), "counted once"
    assert "30% of the step computes and waits for a core that other threads" in verdict.summary
