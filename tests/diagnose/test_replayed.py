"""Predicted gains of a trace hold what the fixed program really wins, on a machine for both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.diagnose import diagnose
from tdiag.diagnose.engine import run_rule
from tdiag.evidence.replay import Replay
from tdiag.evidence.steps import Budget, Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Flags, Modules
from tdiag.model.diagnosis import Finding
from tdiag.model.kind import Kind
from tdiag.rules.catalogue import find
from tdiag.rules.examples import environment, module, optimizers
from tests.trace.machine import Machine, Operation
from tests.trace.making import evidence_of

Step = list[Operation]
GEMM, CHAIN = "ampere_sgemm_128x64", "vectorized_elementwise_kernel"
STEPS = 5


def took(operations: Step, host: float = 1.0) -> float:
    """ns of so many steps. ``host``: a factor on what the host does."""
    machine = Machine()
    paced = [
        (what, us * host) if what in ("op", "python", "update") else (what, us, *rest)
        for what, us, *rest in operations
    ]
    machine.run([paced] * STEPS)
    return machine.done * 1000


def seen(tmp_path: Path, operations: Step) -> Evidence:
    evidence = evidence_of(tmp_path, Machine().run([operations] * STEPS))
    diagnose(evidence)  # adds the budget
    return evidence


def finding(code: str, evidence: Evidence) -> Finding | None:
    found = run_rule(find(code), evidence)
    assert found is None or isinstance(found, Finding)
    return found


def layers(count: int, host_us: float, kernel_us: float, name: str = GEMM) -> Step:
    return [("op", host_us), ("kernel", name, kernel_us)] * count


DRAINED = [*layers(60, 12, 25), ("value", 2.0), ("python", 300)]
UNDRAINED = [*layers(60, 12, 25), ("python", 300)]
COPYING = [("pageable", 900), *layers(30, 8, 60)]


@pytest.mark.parametrize(
    ("code", "before", "after"),
    [
        ("TD401", DRAINED, UNDRAINED),
        ("TD301", COPYING, [("pinned", 450), *layers(30, 8, 60)]),
        ("TD601", layers(50, 20, 90), layers(50, 20, 45)),
        ("TD601", layers(50, 60, 90), layers(50, 60, 45)),  # then the host is the limit
        ("TD604", layers(50, 10, 50, CHAIN), layers(25, 20, 50, CHAIN)),
        ("TD701", layers(80, 50, 10), layers(80, 12, 10)),
    ],
)
@pytest.mark.parametrize("host", [1.0, 0.5])
def test_the_fixed_program_wins_as_much_as_was_predicted(
    tmp_path: Path, code: str, before: Step, after: Step, host: float
) -> None:
    """Whether or not the profiler slowed the host of the trace by as much again."""
    found = finding(code, seen(tmp_path, before))
    assert found is not None
    assert found.speedup is not None
    assert "Replayed" in found.why_gain
    won = took(before, host) / took(after, host)
    assert found.speedup.low - 0.02 <= won <= found.speedup.high + 0.02


DOUBLE = Modules(modules=(module("Net", parameters=1000, parameter_bytes=8000),))


@pytest.mark.parametrize(
    ("code", "told", "before", "after"),
    [
        (
            "TD702",
            (optimizers("Adam", fused=None), environment()),
            [*layers(30, 10, 20), ("update", 1500), ("kernel", "multi_tensor_apply", 80)],
            [*layers(30, 10, 20), ("kernel", "multi_tensor_apply", 80)],
        ),
        ("TD610", (DOUBLE,), layers(50, 30, 640, "dgemm"), layers(50, 30, 10, "dgemm")),
    ],
)
def test_the_best_case_of_a_fix_is_bounded_by_what_becomes_the_limit(
    tmp_path: Path, code: str, told: tuple[Kind, ...], before: Step, after: Step
) -> None:
    """What the fix leaves is not known: at best next to nothing, as in the program ``after``, on a
    host that the profiler may have slowed threefold."""
    found = finding(code, seen(tmp_path, before).add(*told))
    assert found is not None
    assert found.speedup is not None
    assert found.speedup.low == 1
    won = max(took(before, host) / took(after, host) for host in (1.0, 1 / 3))
    # A launch itself may have been slowed, too, which this machine's are not.
    assert won * 0.98 <= found.speedup.high <= won * 1.5


def flags() -> Flags:
    return Flags(
        anomaly_mode=False, deterministic=False, cudnn_benchmark=False,
        user_profiler=False, user_trace="", autocast_dtype="", compiled=False,
    )  # fmt: skip


def test_faster_kernels_win_nothing_where_even_a_quick_host_is_the_limit(tmp_path: Path) -> None:
    evidence = seen(tmp_path, layers(60, 90, 6)).add(flags())
    assert finding("TD601", evidence) is None
    del evidence.facts[Replay]
    assert finding("TD601", evidence) is not None


def clean(evidence: Evidence, mean_ns: float) -> Evidence:
    """As of a run whose steps take so long with no profiler running."""
    mean = round(mean_ns)
    evidence.add(
        Steps(
            durations_ns=(mean,) * 9, mean_ns=mean, median_ns=mean, p90_ns=mean, count=9,
            boundary="optimizer", total_steps_seen=9,
        )
    )  # fmt: skip
    budget = evidence.get(Budget)
    assert budget is not None
    held = budget.components_ns
    scale = mean / budget.step_ns
    return evidence.add(
        Budget(
            step_ns=mean,
            components_ns={name: round(ns * scale) for name, ns in held.items()},
            has_device=True,
        )
    )


def test_the_clean_step_tells_how_much_the_profiler_slowed_the_host(tmp_path: Path) -> None:
    """Traced at 60 µs an op the host is the limit; it really takes 20 µs, and the device is."""
    before, after = layers(50, 60, 45), layers(50, 60, 45 / 3)
    won = took(before, 1 / 3) / took(after, 1 / 3)
    found = finding("TD601", clean(seen(tmp_path, before), took(before, 1 / 3) / STEPS))
    assert found is not None
    assert found.speedup is not None
    assert found.speedup.low == 1  # as far as can be told, the host may only just keep up
    assert won <= found.speedup.high <= 1.15 * won
    slow = clean(seen(tmp_path, before), took(before) / STEPS)
    assert finding("TD601", slow) is None


def test_short_copies_are_not_what_makes_clean_steps_longer(tmp_path: Path) -> None:
    """The replay admits a host three times as fast, whose steps are far shorter than clean ones."""
    before = [("pageable", 5), *layers(60, 90, 6)]
    assert finding("TD301", clean(seen(tmp_path, before), took(before) / STEPS)) is None


def test_workers_that_keep_the_step_waiting_lower_the_low_end(tmp_path: Path) -> None:
    working = [*layers(30, 10, 100, CHAIN), ("value", 2.0)]
    found = finding("TD604", seen(tmp_path, [("data", 4000), *working]))
    assert found is not None
    assert found.speedup is not None
    assert found.speedup.low < 1.06
    assert found.speedup.high > 1.15
