"""What a verdict says is explained: by a finding, or by a line that the samples name."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose import diagnose
from tdiag.diagnose.costs import FAMILIES
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch
from tdiag.model.diagnosis import Diagnosis
from tdiag.model.kind import Kind
from tdiag.rules.examples import (
    MS,
    at,
    environment,
    loaders,
    op_line,
    ops,
    phases,
    roofline,
    stack,
    stacks,
    system,
)  # fmt: skip

WORKING = ops(op_line(20, "forward", 20, grad_calls=20.0))  # ms of work a call
DISPATCH = Dispatch(op_ns=1500, grad_op_ns=6000)


def ran(
    *kinds: Kind, median_ms: float | None = None, priced: bool = True, **wall_ms: float
) -> Diagnosis:
    """A run on a CPU whose clean steps all take as long, made of these phases. ``priced``: the
    fixed cost of a torch call was measured."""
    mean = round(sum(wall_ms.values()) * MS)
    median = mean if median_ms is None else round(median_ms * MS)
    clean = Steps(
        durations_ns=(mean,) * 100, mean_ns=mean, median_ns=median, p90_ns=mean, count=100,
        boundary="optimizer", total_steps_seen=100,
    )  # fmt: skip
    wall = replace(phases(**wall_ms), cpu_ns={})
    price = (DISPATCH,) if priced else ()
    return diagnose(Evidence().add(environment(), WORKING, *price, clean, wall, *kinds))


def fetched(workers: int, wall: float, on_core: float, queued: float, **changes: Any) -> Kind:
    """A loader that fetches in ``wall`` ms, so much of it on a core or waiting for one."""
    return loaders(
        num_workers=workers, load_ns=wall * MS, load_cpu_ns=on_core * wall * MS,
        runqueue_ns=queued * wall * MS, collate_ns=0.0, collate_cpu_ns=0.0, **changes,
    )  # fmt: skip


GRID = tuple(
    itertools.product(
        (0, 1, 2, 4, 8),  # workers
        ((1.0, 1), (2.0, 2), (8.0, 8)),  # cores
        (5.0, 45.0, 120.0),  # ms of fetching
        ((0.95, 0.0), (0.43, 0.56), (0.5, 0.2), (0.1, 0.0), (0.1, 0.85)),  # on a core, queued
        (0.5, 0.95),  # of the machine's cores in use
        (8.0, 30.0),  # ms of waiting, of 40
        (True, False),  # sampled
    )
)


def test_no_verdict_on_the_input_comes_without_a_finding_or_a_line() -> None:
    judged, unsupported = 0, []
    for case in GRID:
        workers, (allowed, cores), wall, (on_core, queued), busy, wait, sampled = case
        machine = system(
            cores_allowed=allowed, cores_machine=cores, cores_used=busy * cores * 0.8,
            machine_busy_cores=busy * cores,
        )  # fmt: skip
        seen: tuple[Stacks, ...] = ()
        if sampled:
            line = stack(15, 0.6, "encode (tok.py)")
            seen = (stacks((replace(line, phase="data_wait"),), workers=(line,)),)
        feeding = fetched(workers, wall, on_core, queued)
        found = ran(feeding, machine, *seen, data_wait=wait, forward=40 - wait)
        if found.verdict.cls not in FAMILIES["input"]:
            continue
        judged += 1
        named = any(f.cls in FAMILIES["input"] and not f.advisory for f in found.findings)
        if not named and not re.search(r"\w\.py:\d+", found.verdict.summary):
            unsupported.append((case, found.verdict.summary))
    assert judged > 100
    assert unsupported == []


def test_tokenising_with_a_worker_on_each_core_is_found_at_its_line() -> None:
    """Measured: 43.9 ms a fetch, 19.1 on a core, 24.6 queued; 1.61 of 2 cores wanted."""
    found = ran(
        fetched(2, 43.9, 19.1 / 43.9, 24.6 / 43.9),
        system(cores_allowed=2.0, cores_machine=2, cores_used=1.3, machine_busy_cores=1.9),
        stacks(workers=(stack(15, 0.8, "encode (me/train.py)"),)),
        data_wait=24.2, forward=7.8,
    )  # fmt: skip
    codes = {f.code: f for f in found.findings}
    assert "TD202" in codes and "TD201" not in codes
    assert codes["TD202"].location is not None and codes["TD202"].location.line == 15
    assert "queue" in codes["TD202"].summary


LOGS = stack(70, 0.82, "write (logging/__init__.py)")


@pytest.mark.parametrize("phase", ["after_step", "prepare", "unattributed"])
def test_what_a_finding_explains_is_not_called_unexplained(phase: str) -> None:
    found = ran(stacks((LOGS,)), **{phase: 82.0}, data_wait=1, forward=17)
    assert found.findings[0].code == "TD804"
    assert found.verdict.cls == "logging"


def test_what_no_finding_explains_stays_unknown_beside_one_that_explains_little() -> None:
    little = stacks(
        (replace(LOGS, self_frac=0.2, logging=(("", 0.2),)), stack(80, 0.1, phase="after_step"))
    )
    found = ran(little, after_step=80, data_wait=1, forward=19)
    assert "TD804" in {f.code for f in found.findings}
    assert found.verdict.cls == "unknown"


def test_unexplained_time_is_placed_at_the_line_sampled_most() -> None:
    line = stack(88, 0.3, "walk (me/game.py)", "prepare", "Board.play")
    found = ran(stacks((stack(30, 0.3, phase="forward"), line)), prepare=70, forward=30)
    assert found.verdict.summary == (
        "70% of the step is spent between the step's end and the first forward;"
        " most samples: train.py:88 in Board.play, 30%"
    )


def test_unexplained_time_is_not_placed_at_a_line_of_a_measured_phase() -> None:
    """Without an optimizer: the loss is sampled most, the update by hand takes the time."""
    lines = stacks((stack(52, 0.3, "smooth_l1_loss (nn/functional.py)"), stack(60, 0.1)))
    counted = ops(op_line(52, "loss", 2), op_line(60, "prepare", 4))
    found = ran(lines, counted, unattributed=60, forward=20, loss=20)
    assert found.verdict.cls == "unknown"
    assert "most samples: train.py:60" in found.verdict.summary


def test_time_before_the_forward_has_the_class_of_the_line_that_takes_most_of_it() -> None:
    line = stack(88, 0.6, "walk (me/game.py)", "prepare", "Board.play")
    lines = stacks((stack(30, 0.3, phase="forward"), line))
    found = ran(lines, prepare=70, data_wait=1, forward=29)
    assert found.verdict.cls == "cpu"
    assert found.verdict.summary.startswith("70% of the step goes to waiting for preprocessing")
    assert found.verdict.summary.endswith("; most samples: train.py:88 in Board.play, 60%")


@pytest.mark.parametrize(
    ("calls", "elapsed_ms", "cls"),
    [(400, 60.0, "compute"), (20_000, 60.0, "overhead"), (0, 0.0, "overhead")],
)
def test_time_that_no_mark_tells_apart_has_the_class_of_what_its_line_does(
    calls: int, elapsed_ms: float, cls: str
) -> None:
    """No loader, no module, no optimizer. 150 µs a torch call is work, 3 µs is not, and a line
    without any is Python."""
    line = stack(88, 0.6, "mix (me/train.py)", function="mix")
    evidence: list[Kind] = [stacks((line,))]
    if calls:
        counted = op_line(
            88, "unattributed", calls, at=at(88, "mix"), elapsed_ns=elapsed_ms * MS,
            grad_calls=float(calls) / 2,
        )  # fmt: skip
        evidence.append(ops(counted))
    found = ran(*evidence, unattributed=90, backward=10)
    assert found.verdict.cls == cls
    if cls == "overhead":
        assert "most samples: train.py:88 in mix, 60%" in found.verdict.summary


@pytest.mark.parametrize(("calls", "cls"), [(40, "compute"), (20_000, "unknown")])
def test_long_calls_are_work_also_where_no_fixed_cost_was_measured(calls: int, cls: str) -> None:
    """A system solved by hand within torch.func: 1.5 ms a call is work on any machine."""
    line = stack(88, 0.6, function="solve")
    counted = op_line(88, "unattributed", calls, at=at(88, "solve"), elapsed_ns=60.0 * MS)
    found = ran(stacks((line,)), ops(counted), priced=False, unattributed=90, backward=10)
    assert found.verdict.cls == cls


def test_no_roofline_of_a_tenth_speaks_for_the_step() -> None:
    """The trace shows the work of backward alone; the rest is computed outside of the phases."""
    line = stack(88, 0.8, function="solve")
    counted = op_line(88, "unattributed", 40, at=at(88, "solve"), elapsed_ns=80.0 * MS)
    small = OpWork(
        name="aten::bmm", dims=((2, 8, 8), (2, 8, 8)), dtype="float32", count=9, flops=1e3,
        moved=0, host_ns=1e5, device_ns=None,
    )  # fmt: skip
    roof = Roof(
        flops_per_s={"float32": 1e9}, bytes_per_s=((1 << 30, 1e9),), source="measured",
        op_ns=1500, threads=2,
    )  # fmt: skip
    work = Work(ops=(small,), calls=9)
    found = ran(stacks((line,)), ops(counted), roof, work, unattributed=90, backward=10)
    assert found.verdict.cls == "compute" and not found.verdict.healthy
    assert "most of it runs outside of the measured phases" in found.verdict.summary


@pytest.mark.parametrize(
    ("calls", "phase", "cls"),
    [(20_000, "unattributed", "overhead"), (20_000, "forward", "unknown"), (40, "", "unknown")],
)
def test_several_lines_of_one_class_tell_as_much_as_one(calls: int, phase: str, cls: str) -> None:
    """A batch made by hand, and an update by hand: neither line has half of the time. Where the
    second computes instead (150 µs a call), neither class has."""
    lines = stacks((stack(88, 0.3, function="batch"), stack(95, 0.25, function="update")))
    counted = ops(
        op_line(88, "unattributed", 20_000, at=at(88, "batch"), elapsed_ns=30.0 * MS),
        op_line(
            95, phase or "unattributed", calls, at=at(95, "update"), elapsed_ns=25.0 * MS,
        ),
    )  # fmt: skip
    found = ran(lines, counted, unattributed=90, backward=10)
    assert found.verdict.cls == cls
    if cls == "overhead":
        assert "most samples: train.py:88 in batch, 30%" in found.verdict.summary


def test_samples_that_end_in_a_hook_count_against_no_line() -> None:
    """A step of 0.2 ms beside busy neighbours: half of the samples are where hooks read a clock."""
    line = stack(88, 0.3, function="batch")
    alone = ran(stacks((line,)), unattributed=90, backward=10)
    hooks = replace(stacks((line,)), probe_frac=0.5)
    assert alone.verdict.cls == "unknown"
    assert ran(hooks, unattributed=90, backward=10).verdict.cls == "overhead"


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_less_than_half_of_it_or_another_phases_function_tells_nothing(share: float) -> None:
    line = stack(20, share, "mix (me/train.py)", function="mix")
    other = ops(op_line(21, "forward", 20, at=at(21, "mix")))
    known = (other,) if share > 0.5 else ()
    found = ran(stacks((line,)), *known, unattributed=90, backward=10)
    assert found.verdict.cls == "unknown"


@pytest.mark.parametrize(
    ("phase", "calls", "cls"),
    [("prepare", 20_000, "overhead"), ("after_step", 20_000, "overhead"),
     ("prepare", 40, "compute"), ("forward", 20_000, "unknown")],
)  # fmt: skip
def test_torch_calls_beside_the_step_have_the_class_of_what_they_do(
    phase: str, calls: int, cls: str
) -> None:
    """Norms of gradients between two passes: calls too small for work, or work."""
    lines = [stack(line, 0.25, "norm (me/train.py)", function="after") for line in (56, 57)]
    counted = [
        op_line(line, phase, calls, at=at(line, "after"), elapsed_ns=20.0 * MS) for line in (56, 57)
    ]
    component = "prepare" if phase == "forward" else phase
    found = ran(stacks(lines), ops(*counted), **{component: 70.0}, data_wait=1, forward=29)
    assert found.verdict.cls == cls


@pytest.mark.parametrize(("phase", "cls"), [("prepare", "overhead"), ("forward", "unknown")])
def test_a_function_called_before_and_after_the_step_explains_both(phase: str, cls: str) -> None:
    """Weights that are sent as text: read from it before a client's steps, and after them. Neither
    time alone is half explained. A function that calls torch in the forward runs there."""
    lines = [stack(n, 0.25, "decode (json/decoder.py)", function="unpack") for n in (13, 14)]
    counted = op_line(15, phase, 40, at=at(15, "unpack"))
    found = ran(stacks(lines), ops(*WORKING.lines, counted), prepare=40, after_step=30, forward=30)
    assert found.verdict.cls == cls


def test_a_line_that_waits_before_the_forward_is_no_preprocessing() -> None:
    line = stack(88, 0.6, "get (requests/api.py)", "prepare", "receive")
    lines = stacks((stack(30, 0.3, phase="forward"), line))
    waits = replace(phases(prepare=70, forward=30), cpu_ns={"prepare": 2.0 * MS})
    found = ran(lines, waits, prepare=70, forward=30)
    assert found.verdict.cls == "io"
    assert "waiting for something other than the CPU" in found.verdict.summary


@pytest.mark.parametrize("line", [None, stack(30, 0.9, phase="forward")])
def test_a_line_sampled_elsewhere_explains_nothing(line: Any) -> None:
    seen = (stacks((line,)),) if line else ()
    summary = ran(*seen, prepare=70, data_wait=1, forward=29).verdict.summary
    assert summary.endswith("between the batch and the first forward; the cause is unknown")


def test_a_loop_over_tensors_after_the_step_is_overhead() -> None:
    pairs = op_line(
        70, "prepare", 1932, at=at(70, "diversity"), conversions={"item": 322.0}, in_loop=True
    )  # fmt: skip
    sampled = stacks((stack(70, 0.68, "norm (torch/functional.py)", function="diversity"),))
    found = ran(ops(*WORKING.lines, pairs), sampled, prepare=70, forward=30)
    assert found.findings[0].code == "TD711"
    assert "train.py:70 (1932 torch calls, 322 × item() per step)" in found.findings[0].fix.text
    assert found.verdict.cls == "overhead"


def test_work_on_the_batch_before_the_forward_is_preprocessing_whichever_finding_names_it() -> None:
    """Mixup in a Python loop, on the batch that a loader handed out: TD711 names the loop."""
    rows = op_line(
        48, "prepare", 1932, at=at(48, "train"), conversions={"item": 322.0}, in_loop=True
    )  # fmt: skip
    loop = (op_line(50, "forward", 20), op_line(53, "optimizer", 3))
    placed = (replace(x, at=at(x.at.line, "train")) for x in loop)
    sampled = stacks((stack(48, 0.5, "norm (torch/functional.py)", function="train"),))
    found = ran(ops(*placed, rows), sampled, prepare=50, data_wait=1, forward=49)
    first = found.findings[0]
    assert (first.code, first.components) == ("TD711", ("prepare",))
    assert found.verdict.cls == "cpu"


def test_a_statement_of_health_stands_only_beside_a_healthy_verdict() -> None:
    crowded = system(cores_machine=2, cores_allowed=2.0, cores_used=0.5, machine_busy_cores=2.0)
    assert "TD605" in {f.code for f in ran(*roofline(best_ms=60), forward=100).findings}
    doubted = ran(*roofline(best_ms=60), crowded, forward=100)
    assert not doubted.verdict.healthy
    assert "TD605" not in {f.code for f in doubted.findings}


def test_a_few_long_steps_are_noted_with_what_they_hold() -> None:
    (note,) = ran(median_ms=10, checkpoint=80, forward=20).notes
    assert note.text.startswith("most steps take about 10.0 ms, but the mean is 100 ms")
    assert note.text.endswith("mostly in checkpoint")
    assert ran(median_ms=50, checkpoint=80, forward=20).notes == ()


FIT = replace(stack(30, 0.9, "_engine_run_backward (autograd/graph.py)"), library="lightning")


@pytest.mark.parametrize(("share", "cls"), [(0.3, "overhead"), (0.1, "unknown")])
def test_time_beside_the_step_is_overhead_where_a_frameworks_loop_takes_most_of_it(
    share: float, cls: str
) -> None:
    found = ran(stacks((replace(FIT, framework=share),)), prepare=25, after_step=15, forward=60)
    assert found.verdict.cls == cls
    said = "the loop of lightning, called at train.py:30, takes 30%"
    assert (said in found.verdict.summary) == (cls == "overhead")


def test_a_loop_that_explains_next_to_nothing_is_not_named() -> None:
    """Hooks that are the framework's own take 40 %, what is beside the step 2 %."""
    hooks = replace(FIT, framework=0.4)
    found = ran(stacks((hooks,)), prepare=1, after_step=1, gc=40, forward=58)
    assert found.verdict.cls == "overhead"
    assert "the loop of lightning" not in found.verdict.summary


def test_starting_workers_costs_what_was_measured_whatever_may_be_won() -> None:
    """An epoch of one step: all of it may become faster without the starts (TD203), 28 of 100 ms
    were seen to be theirs."""
    clean = phases({"data_wait": 3.0}, data_wait=30, forward=70)
    clean = replace(clean, cpu_ns={}, iterator_start_ns=28 * MS, batches={1: 1.0})
    found = ran(clean, loaders(num_workers=2, worker_start_ns=(28 * MS,) * 5), data_wait=30,
                forward=70)  # fmt: skip
    first = found.findings[0]
    assert first.code == "TD203" and first.at_best_ns > 90 * MS
    assert (found.verdict.cls, found.verdict.share) == ("loader", 0.28)
