"""Loops against vectorised losses, launch-bound against healthy, free syncs against dear ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.diagnose.verdict import judge
from tdiag.evidence.device import Syncs
from tdiag.evidence.steps import Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, HostOps, OpLine
from tdiag.evidence.training import Module, Modules
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import (
    MS,
    at,
    budget,
    device_time,
    environment,
    flags,
    loaders,
    op_line,
    ops,
    phases,
    stack,
    stacks,
    sync,
    system,
    threads,
)

DISPATCH = Dispatch(op_ns=1500, grad_op_ns=7000)
FORWARD = op_line(20, "forward", 12, grad_calls=12.0, elapsed_ns=3 * MS)


def result(code: str, evidence: Evidence) -> Finding | Abstained | None:
    return run_rule(find(code), evidence)


def finding(code: str, evidence: Evidence) -> Finding:
    found = result(code, evidence)
    assert isinstance(found, Finding), found
    return found


def training(*lines: OpLine, loss_ms: float = 6.0) -> Evidence:
    step = budget(forward=4, loss=loss_ms, backward=12, optimizer=1)
    clean = phases(forward=4, loss=loss_ms, backward=12, optimizer=1)
    return Evidence().add(step, clean, ops(FORWARD, *lines), DISPATCH)


def loop(line: int = 52, calls: float = 192, **changes: object) -> OpLine:
    return op_line(line, "loss", calls, **{"grad_calls": calls, "in_loop": True, **changes})


def test_a_loop_over_elements_is_blamed_with_its_line_and_counts() -> None:
    found = finding("TD501", training(loop(conversions={"item": 64.0, "bool": 64.0})))
    assert found.location is not None and found.location.line == 52
    assert "192 torch calls" in found.summary
    assert "train.py:52 (192 torch calls, 64 × bool(), 64 × item() per step)" in found.fix.text
    assert "torch.where" in found.fix.text


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (loop(calls=6), "three scales of two calls"),
        (loop(calls=24), "a vectorised loss of many terms"),
        (replace(loop(), in_loop=False), "one call after the other, none repeated"),
        (loop(calls=40, elapsed_ns=40 * 2 * MS), "few calls, each of two milliseconds"),
        (replace(loop(), phase="optimizer"), "not in the loss"),
        (replace(loop(), phase="forward"), "an unrolled recurrence without conversions"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_loop_over_elements_is_left_alone(line: OpLine, why: str) -> None:
    assert result("TD501", training(line, loss_ms=100)) is None


def test_a_loop_that_branches_on_values_in_forward_is_blamed() -> None:
    line = replace(loop(), phase="forward", conversions={"bool": 64.0})
    assert finding("TD501", training(line)).location is not None


def test_a_loop_in_the_forward_of_a_loss_module_is_blamed() -> None:
    line = replace(loop(), phase="forward")
    named = {"parameters": 0, "parameter_bytes": 0, "calls_per_step": 1.0}
    net = Module(name="Net", at=at(10, "forward"), is_loss=False, **named)
    loss = Module(name="PairLoss", at=at(45, "forward"), is_loss=True, **named)
    assert finding("TD501", training(line).add(Modules(modules=(net, loss))))
    assert result("TD501", training(line).add(Modules(modules=(net,)))) is None


def test_backward_is_blamed_on_the_loop_by_what_the_trace_saw() -> None:
    """Without a trace the loop is taken to cost backward what its calls cost forward."""
    guessed = finding("TD501", training(loop()))
    traced = HostOps(
        per_step=300,
        total_per_step=900,
        ops=(),
        backward_of={"forward": 1 * MS, "loss": 9 * MS},
    )
    known = finding("TD501", training(loop()).add(traced))
    name = "backward time of these lines"
    values = [next(m.value for m in found.evidence if m.name == name) for found in (guessed, known)]
    assert values == [round(12 * MS * 0.96 / 3.96), round(12 * MS * 0.9)]


@pytest.mark.parametrize(("calls", "found"), [(400.0, True), (30.0, False)])
def test_beside_a_compiled_model_the_trace_counts_the_calls_of_the_loss(
    calls: float, found: bool
) -> None:
    """Calls cannot be counted by line where compiled graphs are alive."""
    traced = HostOps(
        per_step=500, total_per_step=900, ops=(), backward_of={"forward": 3 * MS, "loss": 9 * MS},
        calls_of={"loss": calls},
    )  # fmt: skip
    loss = Module(name="Ordinal", at=at(45, "forward"), parameters=0, parameter_bytes=0,
                  is_loss=True, calls_per_step=1.0)  # fmt: skip
    lines = (stack(90, 0.4, phase="backward"), stack(52, 0.2, function="Ordinal.forward"))
    step = budget(forward=4, loss=6, backward=12, optimizer=1)
    clean = phases(forward=4, loss=6, backward=12, optimizer=1)
    evidence = Evidence().add(step, clean, DISPATCH, flags(compiled=True), stacks(lines))
    without_trace = result("TD502", evidence)
    assert isinstance(without_trace, Abstained) and "compiled graphs" in without_trace.missing
    evidence.add(traced, Modules(modules=(loss,)))
    if not found:
        assert result("TD502", evidence) is None
        return
    blamed = finding("TD502", evidence)
    assert blamed.location is not None and blamed.location.line == 52
    assert "makes 400 small torch calls per step" in blamed.summary
    assert blamed.fix.intervention == "torch.compile=/home/me/train.py:Ordinal.forward"


@pytest.mark.parametrize("function", ["<module>", "forward", "main.<locals>.loss"])
def test_a_loss_that_cannot_be_named_is_not_compiled_in_a_trial(function: str) -> None:
    lines = [
        op_line(n, "loss", 4, grad_calls=4.0, elapsed_ns=60_000, at=at(n, function))
        for n in range(50, 70)
    ]
    evidence = find("TD502").fires().add(ops(*lines))
    assert finding("TD502", evidence).fix.intervention is None


@pytest.mark.parametrize(("beside_ms", "whole"), [(0.05, True), (0.5, False)])
def test_a_loss_that_is_nearly_all_loop_can_go_as_a_whole(beside_ms: float, whole: bool) -> None:
    """The loop takes 0.96 ms of the calls' time; what else the loss does is little, or is not."""
    beside = op_line(60, "loss", 2, grad_calls=2.0, elapsed_ns=beside_ms * MS)
    found = finding("TD501", training(loop(), beside))
    others = FORWARD.elapsed_ns / (FORWARD.elapsed_ns + (0.96 + beside_ms) * MS)
    gone = 6 + 12 * (1 - others)
    assert (found.at_best_ns == pytest.approx(gone * MS, rel=0.01)) is whole


def test_asking_for_the_length_reads_no_value() -> None:
    line = replace(loop(), phase="forward", conversions={"len": 192.0})
    assert result("TD501", training(line)) is None


def test_the_fix_speaks_of_what_the_line_itself_computes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("\n" * 4 + "    d = (a[i] - b[j]).norm()\n")
    line = replace(loop(), at=at(5, file=str(script)))
    assert "torch.cdist" in finding("TD501", training(line)).fix.text


def test_many_tiny_calls_are_launch_bound_and_large_ones_are_healthy() -> None:
    clean = phases(forward=2, backward=2)
    tiny = Evidence().add(
        budget(forward=2, backward=2),
        clean,
        DISPATCH,
        ops(op_line(20, "forward", 200, grad_calls=200.0)),
    )
    assert isinstance(result("TD701", tiny), Finding)
    assert result("TD605", tiny) is None
    large = Evidence().add(
        budget(forward=200, backward=400),
        phases(forward=200, backward=400),
        DISPATCH,
        ops(op_line(20, "forward", 200, grad_calls=200.0, elapsed_ns=200 * MS)),
    )
    assert result("TD701", large) is None
    assert isinstance(result("TD605", large), Finding)


@pytest.mark.parametrize(("call", "rewritten"), [("mul", True), ("linear", False)])
def test_a_loop_of_small_calls_is_to_be_rewritten_and_one_over_layers_is_only_named(
    call: str, rewritten: bool
) -> None:
    loop_line = op_line(20, "forward", 200, grad_calls=200.0, in_loop=True, names={call: 200.0})
    times = {"forward": 2, "backward": 2}
    tiny = Evidence().add(budget(**times), phases(**times), DISPATCH, ops(loop_line))
    found = finding("TD701", tiny)
    assert found.location == loop_line.at
    assert ("larger batch" not in found.fix.text) is rewritten
    assert rewritten or "Most of them are made in a loop at train.py:20" in found.summary


def test_small_calls_that_loops_make_the_smaller_part_of_are_the_whole_models() -> None:
    loop_line = op_line(20, "forward", 90, grad_calls=90.0, in_loop=True, names={"linear": 90.0})
    other = op_line(31, "forward", 120, grad_calls=120.0, at=at(31, "encode"))
    times = {"forward": 2, "backward": 2}
    evidence = Evidence().add(budget(**times), phases(**times), DISPATCH, ops(loop_line, other))
    assert finding("TD701", evidence).location is None


def test_a_step_that_accumulates_takes_larger_batches_instead() -> None:
    """24 batches of one sequence before each update."""
    of_one = find("TD701").fires().add(loaders(batch_size=1))
    counts = {"data_wait": 24.0, "forward": 24.0, "loss": 24.0, "backward": 24.0, "optimizer": 1.0}
    wall = {"prepare": 0.1, "forward": 1.6, "loss": 0.1, "backward": 2.2, "optimizer": 0.6}
    once, accumulating = (
        finding("TD701", of_one),
        finding("TD701", of_one.add(phases(counts, **wall))),
    )
    assert "Use batch_size=4 instead of 1" in once.fix.text
    assert "accumulates 24 batches of 1 at train.py:41: take one of 24" in accumulating.fix.text
    assert accumulating.at_best_ns > once.at_best_ns


def test_an_agents_calls_serve_more_environments_instead_of_a_larger_batch() -> None:
    """CleanRL's DQN: the calls that act get no larger by the batch that it learns from."""
    tiny = find("TD701").fires()
    assert "larger batch" in finding("TD701", tiny).fix.text
    found = finding("TD701", tiny.add(flags(agent_library="gymnasium")))
    assert "environments" in found.fix.text and "batch" not in found.fix.text
    assert found.fix.action == "Step more environments at once or compile the model"


def test_the_loops_of_the_loss_do_not_count_as_launch_bound_layers() -> None:
    lines = (op_line(20, "forward", 10, grad_calls=10.0, elapsed_ns=20 * MS), loop(calls=2000))
    evidence = Evidence().add(
        budget(forward=20, loss=12, backward=50),
        phases(forward=20, loss=12, backward=50),
        DISPATCH,
        ops(*lines),
    )
    assert result("TD701", evidence) is None


@pytest.mark.parametrize("code", ["TD605", "TD701"])
@pytest.mark.parametrize("kind", [Dispatch, Phases])
def test_efficiency_is_not_judged_without_its_evidence(code: str, kind: type) -> None:
    evidence = find(code).fires()
    del evidence.facts[kind]
    assert isinstance(result(code, evidence), Abstained)


def test_no_device_trace_no_judgement_of_a_device() -> None:
    for code in ("TD605", "TD701"):
        evidence = Evidence().add(budget(device=True, compute=20, launch=4))
        assert isinstance(result(code, evidence), Abstained)


def test_a_sync_is_as_dear_as_the_idle_time_that_follows_it() -> None:
    step = budget(device=True, compute=20, sync=6)
    many_free = sync(count=100.0, host_ns=15.0 * MS, idle_after_ns=0.0)
    alone = Evidence().add(step, Syncs(syncs=(many_free,)), device_time(26))
    assert result("TD401", alone) is None
    dear = sync(at=at(77), host_ns=0.2 * MS, idle_after_ns=6.0 * MS)
    both = Evidence().add(step, Syncs(syncs=(many_free, dear)), device_time(26))
    found = finding("TD401", both)
    assert found.location is not None and found.location.line == 77
    assert found.speedup is not None
    assert found.speedup.high == pytest.approx(26 / 20, abs=0.001)
    assert found.speedup.low < 1.01


def test_conversions_on_a_cpu_are_no_syncs() -> None:
    evidence = training(loop(conversions={"item": 192.0}))
    evidence.missing[Syncs] = "no device was traced"
    assert result("TD401", evidence) == Abstained(
        "TD401", "sync-drains-device", "no device was traced"
    )


@pytest.mark.parametrize(
    ("change", "named", "advisory", "tried"),
    [
        ({"anomaly_mode": True}, "anomaly detection", False, "torch.anomaly=off"),
        ({"user_profiler": True}, "torch profiler", True, "torch.profiler=off"),
        ({"user_trace": "cProfile"}, "cProfile", True, None),
        ({"deterministic": True}, "deterministic algorithms", True, "torch.deterministic=off"),
        (
            {"anomaly_mode": True, "deterministic": True},
            "deterministic algorithms",
            False,
            "torch.anomaly=off+torch.deterministic=off",
        ),
    ],
)
def test_each_debugging_switch_is_named_and_costs_only_what_was_measured(
    change: dict[str, object], named: str, advisory: bool, tried: str | None
) -> None:
    found = finding("TD704", find("TD704").fires().add(flags(**change)))
    assert found.fix.intervention == tried
    assert named in found.summary
    assert found.advisory is advisory


def test_a_debugger_costs_its_share_of_the_samples() -> None:
    traced = stacks((stack(20, 0.3, "trace_dispatch (bdb.py)"), stack(21, 0.6, "forward")))
    evidence = Evidence().add(budget(forward=60, backward=40), flags(user_trace="settrace"), traced)
    assert finding("TD704", evidence).recoverable_ns == 30 * MS


@pytest.mark.parametrize(
    ("intra_op", "cores", "used", "anybody", "call_ms", "fires"),
    [
        (8, 2.0, 1.9, 1.9, 1.0, True),
        (2, 2.0, 1.9, 1.9, 1.0, False),
        (8, 2.0, 1.9, 1.9, 0.01, False),  # calls too small to be split: threads sleep
        (1, 8.0, 1.0, 1.1, 1.0, True),
        (1, 8.0, 1.0, 1.1, 0.01, False),
        (1, 8.0, 7.5, 7.6, 1.0, False),  # the run's own workers use the cores
        (1, 8.0, 1.0, 7.5, 1.0, False),  # other programs use the cores
        (1, 8.0, None, 1.1, 1.0, True),  # the run is part of the machine
        (1, 8.0, 1.0, None, 1.0, False),  # unmeasured is not idle
    ],
)
def test_thread_counts_matter_only_to_calls_that_can_be_split(
    intra_op: int,
    cores: float,
    used: float | None,
    anybody: float | None,
    call_ms: float,
    fires: bool,
) -> None:
    evidence = Evidence().add(
        budget(forward=30, backward=60),
        threads(intra_op),
        system(cores_allowed=cores, cores_used=used, machine_busy_cores=anybody),
        ops(op_line(20, "forward", 30, elapsed_ns=30 * call_ms * MS)),
    )
    assert isinstance(result("TD706", evidence), Finding) is fires


@pytest.mark.parametrize("intra_op", [1, 16])
def test_the_thread_count_is_changed_where_it_was_set(intra_op: int) -> None:
    """The user's line, or the environment variable by name."""

    def fix(**changes: Any) -> Finding:
        evidence = Evidence().add(
            budget(forward=30, backward=60),
            threads(intra_op, **changes),
            system(cores_allowed=8.0, cores_used=1.0, machine_busy_cores=1.1),
            ops(op_line(20, "forward", 30, elapsed_ns=30 * MS)),
        )
        return finding("TD706", evidence)

    line = fix(set_at=at(3))
    assert line.location == at(3)
    assert line.fix.text == "Call torch.set_num_threads(8) at train.py:3."
    variable = fix(omp_num_threads=str(intra_op))
    assert variable.location is None
    assert f"OMP_NUM_THREADS=8 in the environment, where it is {intra_op}" in variable.fix.text
    assert "at the start of the script" in fix().fix.text


@pytest.mark.parametrize(("intra_op", "cls"), [(1, "compute"), (16, "overhead")])
def test_too_few_threads_compute_and_too_many_are_overhead(intra_op: int, cls: str) -> None:
    step = budget(forward=30, backward=60)
    evidence = Evidence().add(
        step, phases(forward=30, backward=60), threads(intra_op), environment(),
        system(cores_allowed=8.0, cores_used=1.0, machine_busy_cores=1.1),
        ops(op_line(20, "forward", 30, elapsed_ns=30 * MS)),
    )  # fmt: skip
    found = finding("TD706", evidence)
    assert found.cls == cls
    verdict = judge(evidence, step, [found])
    assert verdict.cls == cls and not verdict.healthy


def test_backward_is_one_call_however_small_its_parts() -> None:
    lines = (op_line(20, "forward", 30), op_line(30, "optimizer", 1, elapsed_ns=90 * MS))
    evidence = Evidence().add(
        budget(forward=30, backward=60), threads(1), system(cores_used=1.0), ops(*lines)
    )
    assert result("TD706", evidence) is None


def test_host_threads_are_not_judged_where_a_device_computes() -> None:
    evidence = Evidence().add(budget(device=True, compute=30), threads(1), system(cores_used=1.0))
    assert result("TD706", evidence) is None
