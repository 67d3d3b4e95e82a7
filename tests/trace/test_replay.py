"""Changes predicted from a trace's times alone, against a machine that runs the changed program."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tdiag.evidence.from_trace import device_evidence
from tdiag.evidence.replay import Replay
from tdiag.evidence.store import Evidence
from tdiag.trace import read_trace
from tests.trace.machine import Machine, Operation
from tests.trace.making import call, evidence_of, kernel, launched, op, step, write

Step = list[Operation]
US, STEPS = 1000, 6
GEMM, SMALL = "ampere_sgemm_128x64", "elementwise_kernel"


def traced(tmp_path: Path, operations: Step) -> tuple[Replay, float]:
    """The replay of so many equal steps, and how long they took, ns."""
    machine = Machine()
    path = write(tmp_path / "trace.json", machine.run([operations] * STEPS))
    found = device_evidence(read_trace(path)).get(Replay)
    assert found is not None
    return found, machine.done * US


def took(operations: Step) -> float:
    machine = Machine()
    machine.run([operations] * STEPS)
    return machine.done * US


def layers(count: int, host_us: float, kernel_us: float, name: str = GEMM) -> Step:
    return [("op", host_us), ("kernel", name, kernel_us)] * count


def without(operations: Step, what: str) -> Step:
    return [operation for operation in operations if operation[0] != what]


def scaled(operations: Step, name: str, factor: float) -> Step:
    return [
        (what, rest[0], rest[1] * factor, *rest[2:]) if rest[:1] == (name,) else (what, *rest)
        for what, *rest in map(list, operations)
        for rest in [tuple(rest)]
    ]


# A value that is read waits for its own copy, or for the stream.
READS = {"wait cudaStreamSynchronize": 0.0, "wait d2h pageable": 0.0}
DRAINED = [*layers(40, 10, 20), ("value", 2), ("python", 50)]
AHEAD = [*layers(40, 5, 60), ("value", 2)]
LAUNCH_BOUND = layers(60, 40, 5)
COPIES = [("pageable", 900), *layers(20, 10, 80)]
OVERLAPPED = [
    *layers(10, 5, 50),
    ("join", "ncclAllReduce", 700, 20, 7),
    *layers(10, 5, 50),
    ("join", SMALL, 30, 7, 20),
]


@pytest.mark.parametrize(
    ("before", "cuts", "after"),
    [
        (DRAINED, READS,
         [*layers(40, 10, 20), ("kernel", "copy_kernel", 2), ("python", 50)]),
        (DRAINED, {**READS, "d2h pageable": 0.0, "host after d2h": 0.0}, layers(40, 10, 20)),
        (AHEAD, {"gemm float32": 0.5}, scaled(AHEAD, GEMM, 0.5)),
        (LAUNCH_BOUND, {"gemm float32": 0.1}, scaled(LAUNCH_BOUND, GEMM, 0.1)),
        (LAUNCH_BOUND, {"host launch": 0.5}, layers(60, 20, 5)),
        (COPIES, {"h2d pageable": 0.0, "wait h2d pageable": 0.0}, without(COPIES, "pageable")),
        (OVERLAPPED, {"comm": 0.0}, scaled(OVERLAPPED, "ncclAllReduce", 0.0)),
        (OVERLAPPED, {"gemm float32": 0.5}, scaled(OVERLAPPED, GEMM, 0.5)),
        ([("data", 3000), *layers(20, 10, 50)], {"host data_wait": 0.0}, layers(20, 10, 50)),
        ([*layers(20, 10, 5), ("update", 800)], {"host optimizer": 0.0}, layers(20, 10, 5)),
    ],
)  # fmt: skip
def test_a_replayed_change_takes_what_the_changed_program_takes(
    tmp_path: Path, before: Step, cuts: Mapping[str, float], after: Step
) -> None:
    found, whole = traced(tmp_path, before)
    assert found.end_ns({}) == found.total_ns == pytest.approx(whole, abs=US)
    assert found.end_ns(cuts) == pytest.approx(took(after), rel=0.03)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(tmp_path: Path, seed: int) -> None:
    """Kernels of one family take a third, on a machine whose every step is another mixture."""
    dice = random.Random(seed)
    choices: list[Callable[[], Operation]] = [
        lambda: ("op", dice.uniform(2, 80)),
        lambda: ("python", dice.uniform(1, 40)),
        lambda: ("kernel", GEMM, dice.uniform(5, 200)),
        lambda: ("kernel", GEMM, dice.uniform(5, 200)),
        lambda: ("kernel", SMALL, dice.uniform(2, 20)),
        lambda: ("pinned", dice.uniform(5, 200)),
        lambda: ("value", 2.0),
    ]
    weights = [8, 4, 6, 6, 6, 1, 1]
    program = [make() for make in dice.choices(choices, weights, k=250)]
    found, whole = traced(tmp_path, program)
    assert found.end_ns({}) == pytest.approx(whole, abs=US)
    faster = took(scaled(program, GEMM, 1 / 3))
    assert found.end_ns({"gemm float32": 1 / 3}) == pytest.approx(faster, rel=0.03)


def test_a_wait_for_a_device_that_is_busy_anyway_wins_nothing(tmp_path: Path) -> None:
    assert traced(tmp_path, AHEAD)[0].win_frac(READS) < 0.02
    assert traced(tmp_path, DRAINED)[0].win_frac(READS) > 0.06


def test_half_of_the_waits_win_less_than_all(tmp_path: Path) -> None:
    found, _ = traced(tmp_path, DRAINED)
    half, all_of_them = (found.win_frac(dict.fromkeys(READS, kept)) for kept in (0.5, 0.0))
    assert 0.3 * all_of_them < half < 0.8 * all_of_them


def test_workers_that_cannot_keep_up_leave_nothing_to_win(tmp_path: Path) -> None:
    found, _ = traced(tmp_path, [("data", 3000), *layers(20, 10, 100), ("sync",)])
    faster = {"gemm float32": 0.5}
    assert found.win_frac(faster) > 0.18
    assert found.win_frac(faster, fed=False) < 0.04  # of the last step


def test_a_slowed_host_hides_what_the_device_could_win(tmp_path: Path) -> None:
    found, _ = traced(tmp_path, layers(60, 40, 30))
    faster = {"gemm float32": 0.5}
    assert found.win_frac(faster) < 0.02
    assert found.win_frac(faster, pace=0.5) > 0.2
    assert found.end_ns({}, pace=0.5) == pytest.approx(took(layers(60, 20, 30)), rel=0.1)


def missing(evidence: Evidence) -> str:
    assert evidence.get(Replay) is None
    return evidence.missing[Replay]


def test_what_waits_for_something_unseen_is_not_replayed(tmp_path: Path) -> None:
    machine = Machine()
    events = machine.run([layers(10, 5, 20)])
    late = {"correlation": 10}
    for event in events:
        if event["cat"] == "kernel" and event["args"]["correlation"] == late["correlation"]:
            event["ts"] += 5000
    assert "waited for is not in the trace" in missing(evidence_of(tmp_path, events))


def test_without_launches_nothing_is_replayed(tmp_path: Path) -> None:
    events = [step(1, 0, 1000), op("aten::mm", 10, 50), kernel("gemm", 100, 700)]
    assert "no call that launches" in missing(evidence_of(tmp_path, events))


def test_threads_that_issue_work_side_by_side_are_not_replayed(tmp_path: Path) -> None:
    events = Machine().run([layers(30, 5, 20)])
    for event in events:
        if event["cat"] == "cuda_runtime" and event["args"]["correlation"] % 2:
            event["tid"] = 999
            event["dur"] = 30
    assert "several threads" in missing(evidence_of(tmp_path, events))


def test_a_kernel_that_begins_before_the_last_one_ends_still_comes_after_it(tmp_path: Path) -> None:
    """Programmatic dependent launch, as on an H100: each of 40 begins 3 µs before the end of the
    one before it. With half the time for each, the whole takes half."""
    events = [step(1, 0, 4000)]
    for n in range(40):
        events += launched(GEMM, 5 + 10 * n, 20 + 57 * n, 60, n + 1)
    found = evidence_of(tmp_path, events).get(Replay)
    assert found is not None
    kernels_ns = (40 * 57 + 3) * US
    assert found.end_ns({"gemm float32": 0.5}, pace=0) == pytest.approx(kernels_ns / 2, rel=0.1)


def test_branches_of_a_graph_run_beside_each_other(tmp_path: Path) -> None:
    """Two kernels of one launch that begin at once, and a third that comes after both."""
    nodes = [kernel(GEMM, 100, 50, 5), kernel(GEMM, 101, 50, 5), kernel(GEMM, 152, 50, 5)]
    found = evidence_of(tmp_path, [step(1, 0, 300), call("cudaGraphLaunch", 80, 10, 5), *nodes])
    replay = found.get(Replay)
    assert replay is not None
    assert replay.after.tolist() == [-1, -1, 1]
