"""TD811: cudaMalloc and cudaFree in every step, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.diagnose import diagnose
from tdiag.diagnose.engine import run_rule
from tdiag.evidence.memory import AllocatorCalls
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tests.trace.making import Event, call, evidence_of, kernel, step

M, F, K = "hipMalloc", "hipFree", "hipLaunchKernel"
OFF = [M, K, F] * 20
THRASHING = [*[K] * 16, M, *[F] * 12, M, K] * 4
EMPTIED = [*[F] * 15, *[K, M, K, K, K, K] * 4]
PINNED = ["hipHostMalloc", K, "hipHostFree"] * 20
CONTEXT = ["cudaFree", *[K] * 20]


def step_of(calls: list[str], us: float = 50) -> list[Event]:
    events: list[Event] = []
    now = 0.0
    for number, name in enumerate(calls, 1):
        took = 5 if name == K else us
        events.append(call(name, now, took, number))
        if name == K:
            events.append(kernel("k", now + 5, 5, number))
            now += 5
        now += took
    return [step(1, 0, now), *events]


@pytest.mark.parametrize(
    ("calls", "words"),
    [(OFF, "is off"), (THRASHING, "tried again"), (EMPTIED, "empties the cache")],
    ids=["off", "thrashing", "emptied"],
)
def test_what_makes_a_step_allocate(tmp_path: Path, calls: list[str], words: str) -> None:
    evidence = evidence_of(tmp_path, step_of(calls))
    diagnosis = diagnose(evidence)
    assert diagnosis.verdict.cls == "memory"
    found = diagnosis.findings[0]
    assert found.code == "TD811" and words in found.summary
    counted = evidence.get(AllocatorCalls)
    assert counted is not None
    assert (counted.mallocs, counted.frees) == (calls.count(M), calls.count(F))
    assert counted.retries == (4 if calls is THRASHING else 0)
    if calls is THRASHING:
        assert found.fix.intervention == "process.expandable_segments"


@pytest.mark.parametrize("calls", [PINNED, CONTEXT], ids=["pinned-host-memory", "a-new-context"])
def test_other_memory_calls_are_not_the_allocators(tmp_path: Path, calls: list[str]) -> None:
    evidence = evidence_of(tmp_path, step_of(calls))
    diagnose(evidence)
    assert not isinstance(run_rule(find("TD811"), evidence), Finding)
