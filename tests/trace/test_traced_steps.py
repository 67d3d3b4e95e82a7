"""Steps are found where a trace marks them, and warm-up is set aside."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path

from tdiag.evidence.from_trace import device_evidence
from tdiag.evidence.steps import TracedSteps
from tdiag.evidence.store import Evidence
from tests.trace.making import call, evidence_of, kernel, launched, note, op, step, trace_of

US = 1000


def steps(evidence: Evidence) -> TracedSteps:
    found = evidence.get(TracedSteps)
    assert found is not None
    return found


def test_profiler_steps(tmp_path: Path) -> None:
    found = steps(evidence_of(tmp_path, [step(5, 0, 100), step(6, 105, 95), op("a", 1, 2)]))
    assert found.found_by == "ProfilerStep"
    assert found.durations_ns == (105 * US, 95 * US)  # what lies between two belongs to the first
    assert (found.count, found.mean_ns) == (2, 100 * US)


def test_the_device_may_end_after_the_host(tmp_path: Path) -> None:
    events = [step(1, 0, 100), step(2, 100, 100), *launched("k", 150, 190, 400, 3)]
    assert steps(evidence_of(tmp_path, events)).durations_ns == (100 * US, 490 * US)


def test_iterations_of_the_loader(tmp_path: Path) -> None:
    events = [note("enumerate(DataLoader)#X.__next__", 100 * i, 10) for i in range(4)]
    found = steps(evidence_of(tmp_path, events))
    assert (found.found_by, found.durations_ns) == ("loader", (100 * US,) * 3)


def test_iterations_of_the_optimizer(tmp_path: Path) -> None:
    events = [note("Optimizer.step#SGD.step", 100 * i + 80, 10) for i in range(3)]
    found = steps(evidence_of(tmp_path, events))
    assert (found.found_by, found.durations_ns) == ("optimizer", (100 * US,) * 2)


def test_no_steps_at_all_is_one_and_says_so(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path, [kernel("k", 100, 50), op("a", 300, 50)])
    assert steps(evidence).found_by == "span"
    assert steps(evidence).durations_ns == (250 * US,)
    assert any(
        "marks no steps" in text and "warm-up" in text
        for text in (note.text for note in evidence.notes)
    )


def test_warm_up_is_set_aside_and_said(tmp_path: Path) -> None:
    ends = [0, 900, 1200, 1300, 1410, 1500]
    events = [step(i, a, b - a) for i, (a, b) in enumerate(pairwise(ends))]
    evidence = evidence_of(tmp_path, events)
    assert steps(evidence).durations_ns == (100 * US, 110 * US, 90 * US)
    assert any("2 warm-up steps" in text for text in (note.text for note in evidence.notes))


def test_ordinary_variation_is_no_warm_up(tmp_path: Path) -> None:
    events = [step(0, 0, 180), step(1, 180, 100), step(2, 280, 120)]
    assert steps(evidence_of(tmp_path, events)).count == 3


def test_a_stall_late_in_the_trace_is_no_warm_up(tmp_path: Path) -> None:
    lengths = [100] * 26 + [900] + [100] * 2
    ends = [0, *accumulate(lengths)]
    events = [step(i, a, b - a) for i, (a, b) in enumerate(pairwise(ends))]
    assert steps(evidence_of(tmp_path, events)).count == 29


def test_slow_steps_in_half_of_the_trace_are_no_warm_up(tmp_path: Path) -> None:
    ends = [0, *accumulate([300] * 5 + [100] * 5)]
    events = [step(i, a, b - a) for i, (a, b) in enumerate(pairwise(ends))]
    assert steps(evidence_of(tmp_path, events)).count == 10


def test_waiting_for_the_first_batch_is_no_warm_up(tmp_path: Path) -> None:
    ends = [0, *accumulate([900, 100, 100, 100])]
    events = [step(i, a, b - a) for i, (a, b) in enumerate(pairwise(ends))]
    events.append(note("enumerate(DataLoader)#X.__next__", 0, 800))
    assert steps(evidence_of(tmp_path, events)).count == 4


def test_known_boundaries_win(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [step(0, 0, 500), call("cudaLaunchKernel", 1, 2)])
    found = steps(device_evidence(trace, steps=[0, 200 * US, 500 * US]))
    assert (found.found_by, found.durations_ns) == ("run", (200 * US, 300 * US))
