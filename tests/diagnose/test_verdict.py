"""The decision table of docs/verdict.md, a test a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.verdict import GUESS_CONFIDENCE, judge
from tdiag.evidence.machine import Environment
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.steps import Steps, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, HostOps
from tdiag.model.diagnosis import Finding, Fix, Speedup, Verdict
from tdiag.model.kind import Kind
from tdiag.rules.examples import (
    MS,
    at,
    budget,
    loaders,
    op_line,
    ops,
    phases,
    stack,
    stacks,
    system,
)

STEP = 100 * MS
DISPATCH = Dispatch(op_ns=1500, grad_op_ns=6000)
WORKING = ops(op_line(20, "forward", 20, grad_calls=20.0))  # ms of work a call
# 1 GFLOP/s and 1 GB/s, and a step whose products need 60 of its 100 ms at that rate.
ROOF = Roof(
    flops_per_s={"float32": 1e9}, bytes_per_s=((1 << 30, 1e9),), source="measured", op_ns=1500,
    threads=2,
)  # fmt: skip


def work(flops: float, calls: float = 60) -> Work:
    product = OpWork(
        name="aten::mm", dims=((8, 8), (8, 8)), dtype="float32", count=calls, flops=flops, moved=0,
        host_ns=STEP, device_ns=None,
    )  # fmt: skip
    return Work(ops=(product,), calls=calls)


WORK = work(60e6)
TRACED = TracedSteps(durations_ns=(STEP,) * 5, mean_ns=STEP, count=5, found_by="ProfilerStep")
CPU = Environment(
    torch="2.13.0", python="3.11", device="cpu", device_count=0, tdiag="0", command=(),
    script="train.py", hostname="", platform="",
)  # fmt: skip


def steps(count: int = 100, spread: float = 0.0) -> Steps:
    noise = (round((1 + spread * (-1) ** i) * STEP) for i in range(count))
    return Steps(
        durations_ns=tuple(noise), mean_ns=STEP, median_ns=STEP, p90_ns=STEP, count=count,
        boundary="optimizer", total_steps_seen=count,
    )  # fmt: skip


def finding(cls: str, share: float, *, code: str = "TD000", high: float | None = None) -> Finding:
    most = high or share
    return Finding(
        code=code, name="pattern", cls=cls, summary="", location=None, evidence=(), why_gain="",
        recoverable_ns=round(share * STEP), at_best_ns=round(most * STEP), fix=Fix("do it", "safe"),
        speedup=Speedup(1 / (1 - (2 * share - most)), 1 / (1 - most)),
    )  # fmt: skip


def run(
    parts: dict[str, float], *kinds: Kind, findings: tuple[Finding, ...] = (), **options: Any
) -> Verdict:
    """A measured run; ``parts`` in ms, made up to 100 with forward."""
    device = options.pop("device", False)
    rest = "compute" if device else "forward"
    whole = budget(device=device, **({rest: 100 - sum(parts.values())} | parts))
    evidence = Evidence().add(CPU, WORKING, DISPATCH, steps(), whole, ROOF, WORK, *kinds)
    for kind in options.pop("without", ()):
        del evidence.facts[kind]
    return judge(evidence, whole, findings)


@dataclass
class Case:
    parts: dict[str, float]
    cls: str
    device: bool = False


@pytest.mark.parametrize(
    "case",
    [
        Case({"data_wait_io": 40}, "io"),
        Case({"data_wait_cpu": 40}, "cpu"),
        Case({"data_wait": 40}, "input"),
        Case({"data_wait_io": 15, "data_wait_cpu": 16}, "cpu"),
        Case({"evaluation": 30}, "eval"),
        Case({"checkpoint": 30}, "checkpoint"),
        Case({"gc": 30}, "overhead"),
        Case({"data_wait_cpu": 4}, "compute"),
        Case({"data_wait_cpu": 19}, "compute"),  # moderate, and the step mostly computes
        Case({"data_wait_cpu": 19, "evaluation": 18, "checkpoint": 17}, "cpu"),  # it does not
        Case({"other": 60}, "unknown"),
        Case({"unattributed": 60}, "unknown"),
        Case({"other": 35, "evaluation": 30}, "unknown"),
        Case({"other": 25}, "unknown"),
        Case({"other": 15}, "compute"),
        Case({"other": 25, "evaluation": 30}, "eval"),
        Case({"h2d": 30}, "h2d", device=True),
        Case({"h2d": 15, "d2h": 15}, "h2d", device=True),
        Case({"sync": 30}, "sync", device=True),
        Case({"launch": 30}, "overhead", device=True),
        Case({"alloc": 30}, "memory", device=True),
        Case({"cpu_ops": 30}, "cpu", device=True),
        Case({"comm": 30}, "comm", device=True),
        Case({"python_loss": 30}, "python_loss", device=True),
        Case({"data_wait_io": 30, "launch": 20}, "io", device=True),
        Case({"sync": 15, "launch": 10}, "sync", device=True),  # the host leaves the device idle
        Case({"sync": 10, "h2d": 15}, "compute", device=True),  # two causes, both moderate
    ],
    ids=lambda case: f"{case.cls}-{'-'.join(case.parts)}",
)
def test_the_waste_that_costs_most_is_the_verdict(case: Case) -> None:
    assert run(case.parts, device=case.device).cls == case.cls


def test_storage_is_only_named_where_it_was_read() -> None:
    """A dataset that waits for a service is blocked, too."""
    cold = run({"data_wait_io": 40}, loaders(read_bytes=4096.0))
    assert "waiting for storage" in cold.summary
    for few in (0.0, 100.0):  # less than the smallest read: none in most batches
        waiting = run({"data_wait_io": 40}, loaders(read_bytes=few, major_faults=0.0))
        assert "something other than storage" in waiting.summary


def test_each_class_is_named_in_words_of_its_own() -> None:
    alone = ("data_wait_io", "data_wait_cpu", "data_wait", "evaluation", "checkpoint")
    on_a_device = ("h2d", "sync", "launch", "alloc", "comm", "python_loss")
    found = [run({part: 40}, device=part in on_a_device) for part in (*alone, *on_a_device)]
    assert {v.cls for v in found} >= {"io", "cpu", "input", "eval", "h2d", "sync", "memory"}
    assert all(v.summary.startswith("40% of the step ") for v in found)
    named = [v.summary.split(";")[0] for v in found]
    assert len(set(named)) == len(named), "one and the same words for two classes"


def test_healthy_is_said_plainly_and_only_when_nothing_is_to_be_won() -> None:
    healthy = run({"data_wait_cpu": 4})
    assert healthy.healthy
    assert healthy.summary == (
        "96% of the step is computing, at 62% of what this machine reaches: healthy"
    )
    assert not run({"data_wait_cpu": 15}, findings=(finding("cpu", 0.15),)).healthy
    assert not run({"data_wait_cpu": 12, "evaluation": 12}).healthy
    assert not run({"data_wait_cpu": 4}, CROWDED).healthy


def test_a_moderate_waste_is_the_runner_up_of_compute() -> None:
    found = run({"data_wait_cpu": 15}, findings=(finding("cpu", 0.15),))
    assert (found.cls, found.runner_up) == ("compute", "cpu")
    assert "waiting for preprocessing on the CPU (15%)" in found.summary


def test_python_in_the_loss_is_known_by_its_finding() -> None:
    """On a CPU the loss is a phase like another, until its calls were counted."""
    found = run({"loss": 30, "backward": 30}, findings=(finding("python_loss", 0.4, high=0.5),))
    assert (found.cls, found.share) == ("python_loss", 0.5)


def test_a_class_without_a_component_costs_what_its_finding_can_win() -> None:
    assert run({"other": 30}, findings=(finding("logging", 0.25),)).cls == "unknown"
    assert run({"other": 30}, findings=(finding("logging", 0.3),)).cls == "logging"
    assert run({}, findings=(finding("overhead", 0.3, high=0.4),)).share == 0.4
    assert run({}, findings=(replace(finding("logging", 0.5), advisory=True),)).cls == "compute"


def test_a_prediction_never_exceeds_what_the_budget_measured() -> None:
    found = run({"sync": 4}, device=True, findings=(finding("sync", 0.5),))
    assert found.cls == "compute"


def test_a_tie_goes_to_the_finding_that_is_shown_first() -> None:
    parts = {"evaluation": 31, "checkpoint": 30}
    assert run(parts).cls == "eval"
    assert run(parts, findings=(finding("checkpoint", 0.3),)).cls == "checkpoint"
    assert run(parts | {"checkpoint": 20}, findings=(finding("checkpoint", 0.2),)).cls == "eval"
    # Wasted work outweighs causes that cost less.
    assert run(parts, findings=(finding("compute", 0.32),)).cls == "compute"
    assert run(parts, findings=(finding("compute", 0.25),)).cls == "eval"


def test_fixed_costs_of_the_counted_calls_are_overhead() -> None:
    """20,000 calls of 1.5 µs are 30 of 100 ms, rules or no rules."""
    busy = ops(op_line(20, "optimizer", 20_000))
    found = run({"optimizer": 40}, busy)
    assert (found.cls, found.share) == ("overhead", 0.3)


@pytest.mark.parametrize(("calls", "cls"), [(100, "compute"), (10_000, "overhead")])
def test_an_update_that_works_is_no_overhead_however_it_could_be_written(
    calls: float, cls: str
) -> None:
    """30 ms of optimizer: 300 µs a call is work on large tensors, 3 µs is none."""
    loop = ops(op_line(20, "optimizer", calls))
    unfused = replace(finding("overhead", 0.25), components=("optimizer",))
    found = run({"optimizer": 30}, loop, findings=(unfused,))
    assert found.cls == cls
    assert not found.healthy
    assert (cls == "compute") == ("the largest gain is pattern (25%)" in found.summary)


def test_python_beside_the_updates_calls_is_overhead_and_no_work() -> None:
    """A callback's NumPy within a framework's optimizer step: 25 of 30 ms are outside its calls."""
    calls = op_line(20, "optimizer", 100, elapsed_ns=5 * MS)
    callback = replace(finding("overhead", 0.25), components=("optimizer",))
    clean = phases(forward=70, optimizer=30)
    assert run({"optimizer": 30}, ops(calls), clean, findings=(callback,)).cls == "overhead"
    works = replace(calls, elapsed_ns=30 * MS)
    assert run({"optimizer": 30}, ops(works), clean, findings=(callback,)).cls == "compute"


@pytest.mark.parametrize(
    ("parts", "on_core", "cls"),
    [
        ({"prepare": 60}, 58, "cpu"),
        ({"prepare": 60}, 2, "unknown"),
        ({"prepare": 40}, 38, "compute"),  # circumstance must be overwhelming
    ],
)
def test_batches_made_by_hand(parts: dict[str, float], on_core: float, cls: str) -> None:
    """On a core: preprocessing. Off it nothing tells reading from waiting for a core."""
    wall = phases(forward=100 - parts["prepare"], **parts)
    made = replace(wall, cpu_ns={"prepare": on_core * MS})
    found = run(parts, made)
    assert found.cls == cls
    assert found.confidence <= GUESS_CONFIDENCE
    assert cls != "compute" or found.runner_up == "cpu"


def test_with_a_loader_what_lies_before_forward_is_not_guessed() -> None:
    made = phases(prepare=40, data_wait=1, forward=59)
    assert run({"prepare": 70}, made).cls == "unknown"


@pytest.mark.parametrize(("start", "cls"), [(35, "loader"), (10, "input")])
def test_a_wait_for_workers_to_start_is_the_loaders(start: float, cls: str) -> None:
    waits = replace(phases(data_wait=40, forward=60), iterator_start_ns=start * MS)
    assert run({"data_wait": 40}, waits, loaders(num_workers=2)).cls == cls


# --- abstaining --------------------------------------------------------------------------------


def test_compute_needs_counted_calls() -> None:
    found = run({}, without=(type(WORKING),))
    assert (found.cls, found.runner_up, found.confidence) == ("unknown", "compute", 0)
    assert "torch calls were not counted" in found.summary


def test_compute_needs_the_cost_of_a_call_unless_calls_are_long() -> None:
    assert run({}, without=(Dispatch,)).cls == "compute"  # 5 ms a call
    short = ops(op_line(20, "forward", 2000))
    assert run({}, short, without=(Dispatch,)).cls == "unknown"


def test_a_waste_is_no_verdict_beside_more_that_may_be_overhead() -> None:
    """A step of a millisecond: 30 % data wait, and 70 % of short calls of unknown cost."""
    short = ops(op_line(20, "forward", 2000))
    assert run({"data_wait_cpu": 30}, short, without=(Dispatch,)).cls == "unknown"
    assert run({"data_wait_cpu": 60}, short, without=(Dispatch,)).cls == "cpu"
    assert run({"data_wait_cpu": 30}, without=(Dispatch,)).cls == "cpu"  # calls of 5 ms


def test_ops_of_a_trace_stand_in_for_counted_calls() -> None:
    traced = HostOps(per_step=50, total_per_step=99, ops=(), backward_of={})
    assert run({}, traced, without=(type(WORKING), Dispatch)).cls == "compute"


def test_nothing_is_healthy_whose_lines_were_not_seen() -> None:
    """A run so short that only its trace was recorded: 60,000 short ops may be anybody's loop."""
    many = HostOps(per_step=60_000, total_per_step=99_000, ops=(), backward_of={})
    found = run({}, many, without=(type(WORKING),))
    assert found.cls == "unknown" and "neither stacks were sampled" in found.summary
    few = HostOps(per_step=50, total_per_step=99, ops=(), backward_of={})
    found = run({}, few, without=(type(WORKING),))
    assert (found.cls, found.healthy) == ("compute", False)


def test_a_waste_needs_no_counted_calls() -> None:
    assert run({"data_wait_io": 50}, without=(type(WORKING), Dispatch)).cls == "io"


def test_without_steps_nothing_is_judged() -> None:
    evidence = Evidence(missing={Steps: "the run ended after 3 steps"})
    found = judge(evidence, None, ())
    assert (found.cls, found.confidence) == ("unknown", 0)
    assert found.summary == "the run ended after 3 steps"


def test_a_trace_without_device_work_is_no_zero_percent() -> None:
    found = judge(Evidence().add(TRACED), None, ())
    assert found.cls == "no_device_activity"


# --- confidence --------------------------------------------------------------------------------


def test_confidence_falls_with_a_close_runner_up() -> None:
    alone, close = run({"evaluation": 60}), run({"evaluation": 30, "checkpoint": 28})
    assert alone.confidence > 0.95
    assert close.confidence < 0.6
    assert close.runner_up == "checkpoint"


def test_confidence_falls_with_few_or_scattered_steps() -> None:
    many = run({"evaluation": 60})
    few = run({"evaluation": 60}, steps(5))
    scattered = run({"evaluation": 60}, steps(5, spread=0.5))
    assert many.confidence > few.confidence > scattered.confidence > 0


def test_an_even_split_of_the_wait_is_as_uncertain_as_it_is() -> None:
    found = run({"data_wait_io": 30, "data_wait_cpu": 29})
    assert (found.cls, found.runner_up) == ("io", "cpu")
    assert found.share == 0.3
    assert found.confidence < 0.55
    assert found.summary == (
        "59% of the step waits for data: 30% for storage;"
        " next: waiting for preprocessing on the CPU (29%)"
    )


CROWDED = system(cores_machine=2, machine_busy_cores=2.0, cores_used=0.5)


def test_confidence_falls_on_a_machine_that_others_use() -> None:
    assert run({"evaluation": 60}, CROWDED).confidence < 0.3
    queued = system(training_queued_frac=0.5, machine_busy_cores=2.0)
    assert run({"evaluation": 60}, queued).confidence < 0.55
    by_its_own = system(training_queued_frac=0.5, machine_busy_cores=1.1)
    assert run({"evaluation": 60}, by_its_own).confidence == run({"evaluation": 60}).confidence
    idle = replace(CROWDED, machine_busy_cores=1.0)
    assert run({"evaluation": 60}, idle).confidence == run({"evaluation": 60}).confidence


def test_a_crowded_machine_does_not_turn_overhead_into_compute() -> None:
    """A call seems to take eight times its fixed cost, but only a quarter of that on a core."""
    short = ops(op_line(20, "forward", 2_500, grad_calls=2_500.0))
    cheap = Dispatch(op_ns=1500, grad_op_ns=5000)
    found = run({}, short, cheap, CROWDED)
    assert found.cls == "unknown"
    assert "but other programs kept the cores busy" in found.summary
    assert found.summary.endswith(
        "run it again when they have ended, or on cores that they do not use"
    )


def test_a_crowded_machine_does_not_hide_a_waste_behind_slow_compute() -> None:
    """15 % data wait; with the quarter of compute that is left alone it would be 40 %."""
    assert run({"data_wait_io": 15}, CROWDED).cls == "unknown"
    assert run({"data_wait_io": 3}, CROWDED).cls == "compute"
    assert run({"data_wait_io": 30}, CROWDED).cls == "io"


def test_overhead_at_a_line_that_writes_logs_is_logging() -> None:
    """A history that is written whole in each step: it slows down, and it logs."""
    grows = replace(finding("overhead", 0.5), location=at(64, "log"))
    other = finding("logging", 0.45)
    writes = stack(64, 0.5, "emit (logging/__init__.py)", function="log")
    found = run({"optimizer": 60}, stacks((writes,)), findings=(grows, other))
    assert found.cls == "logging"
    assert run({"optimizer": 60}, findings=(grows, other)).cls == "overhead"


@pytest.mark.parametrize(
    ("calls", "names", "cls"),
    [
        (2, {"__getitem__": 1.0, "clone": 1.0}, "memory"),  # 20 ms to copy a queue
        (2, {"clone": 1.0, "matmul": 1.0}, "overhead"),
        (9000, {"clone": 9000.0}, "overhead"),  # 2 µs each: calls, not memory
    ],
)
def test_overhead_at_a_line_that_copies_large_tensors_is_memory(
    calls: int, names: dict[str, float], cls: str
) -> None:
    queue = replace(finding("overhead", 0.4), location=at(56, "enqueue"), components=("other",))
    line = op_line(56, "prepare", calls, at=at(56, "enqueue"), names=names, elapsed_ns=20 * MS)
    assert run({"other": 45}, ops(line), findings=(queue,)).cls == cls


def test_logging_that_cannot_lie_beside_an_evaluation_lies_in_it() -> None:
    found = run({"evaluation": 90}, findings=(finding("eval", 0.5), finding("logging", 0.8)))
    assert found.cls == "logging"
    assert "next: evaluation (20%)" in found.summary
    beside = run({"evaluation": 45}, findings=(finding("eval", 0.4), finding("logging", 0.3)))
    assert beside.cls == "eval"
