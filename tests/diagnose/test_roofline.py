"""The step against the machine's rates."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose import diagnose
from tdiag.diagnose.efficiency import make_roofline
from tdiag.evidence.data_sheets import roof_of
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.steps import TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch
from tdiag.model.diagnosis import Roofline
from tdiag.report import render
from tdiag.report.of_diagnosis import document
from tdiag.report.page import Page
from tdiag.rules.examples import MS, at, budget, device_time, op_line, ops, roofline, system

STEP = budget(data_wait_cpu=10, forward=30, backward=50, optimizer=10)
ROOF, _ = roofline(best_ms=1)
PRODUCT = OpWork(
    name="aten::mm", dims=((64, 64), (64, 64)), dtype="float32", count=10, flops=30e6, moved=1e5,
    host_ns=60 * MS, device_ns=None, at=at(20, "forward"),
)  # fmt: skip
ADDITION = OpWork(
    name="aten::add", dims=((1000, 1000),), dtype="float32", count=2, flops=0, moved=2e7,
    host_ns=5 * MS, device_ns=None, at=at(20, "forward"),
)  # fmt: skip
WORK = Work(ops=(PRODUCT, ADDITION), calls=1000)


def made(*kinds: object, work: Work = WORK, roof: Roof = ROOF) -> Roofline:
    found = make_roofline(Evidence().add(roof, work, *kinds), STEP)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_each_op_takes_the_longer_of_its_arithmetic_and_its_bytes() -> None:
    found = made()
    assert (found.compute_ns, found.memory_ns) == (30 * MS, 4 * MS)
    assert (found.step_ns, found.efficiency, found.bound) == (90 * MS, 0.3778, "compute")
    assert [(x.name, x.ns, x.best_ns, x.bound) for x in found.lines] == [
        ("aten::mm", 60 * MS, 30 * MS, "compute"),
        ("aten::add", 5 * MS, 4 * MS, "memory"),
    ]


def test_calls_cost_what_they_cost_in_the_program() -> None:
    assert made().dispatch_ns == 1000 * 1500
    line = op_line(20, "forward", 10_000, grad_calls=10_000.0)
    found = made(ops(line), Dispatch(op_ns=1000, grad_op_ns=6000))
    assert (found.dispatch_ns, found.bound) == (60 * MS, "dispatch")


def test_time_in_which_others_had_the_cores_is_not_the_steps() -> None:
    crowded = system(cores_machine=2, cores_used=1.0, machine_busy_cores=2.0)
    assert made(crowded).efficiency == 0.7556


def test_threads_that_would_save_nothing_are_not_idle() -> None:
    fewer = replace(ROOF, flops_per_s={"float32": 0.6e9}, threads=1)
    found = made(roof=replace(ROOF, in_force=fewer))
    assert (found.threads_used, found.threads) == (1, 2)
    assert found.idle_threads_frac == round(20 / 90, 4)
    assert made(roof=replace(ROOF, in_force=replace(ROOF, threads=1))).idle_threads_frac == 0


@pytest.mark.parametrize(("busy", "idle"), [(1.02, 20 / 90), (1.25, 20 / 90), (1.4, 0), (2.0, 0)])
def test_a_thread_more_needs_a_core_that_nobody_uses(busy: float, idle: float) -> None:
    two = system(cores_allowed=2.0, cores_machine=2, cores_used=busy, machine_busy_cores=busy)
    fewer = replace(ROOF, flops_per_s={"float32": 0.6e9}, threads=1)
    found = made(two, roof=replace(ROOF, in_force=fewer))
    assert found.idle_threads_frac == pytest.approx(idle, abs=1e-4)


def test_an_op_is_never_better_than_it_was() -> None:
    cached = replace(ADDITION, host_ns=1 * MS)
    assert made(work=Work(ops=(PRODUCT, cached), calls=1000)).memory_ns == 1 * MS


@pytest.mark.parametrize(
    "name", ["NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", "Tesla V100-SXM2-16GB"]
)
def test_a_known_device_has_the_rates_of_its_data_sheet(name: str) -> None:
    roof = roof_of(name)
    assert roof is not None
    product = replace(PRODUCT, dtype="float16", count=1, flops=1e12, device_ns=20 * MS)
    tera = {"A": 312, "N": 312, "T": 125}[name[0]]
    assert roof.best_ns(product) == pytest.approx(1e9 / tera)
    assert name in roof.source


@pytest.mark.parametrize(
    "name", ["", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "NVIDIA GeForce RTX 4090 Laptop GPU"]
)
def test_a_part_of_a_device_and_one_of_a_like_name_have_none(name: str) -> None:
    assert roof_of(name) is None


@pytest.mark.parametrize(("device_ns", "healthy"), [(50 * MS, True), (100 * MS, False)])
def test_a_step_on_a_device_is_healthy_only_near_its_data_sheet(
    device_ns: int, healthy: bool
) -> None:
    product = replace(PRODUCT, dtype="bfloat16", count=1, flops=312e12 * 0.03, device_ns=device_ns)
    roof = roof_of("NVIDIA A100-SXM4-40GB")
    assert roof is not None
    traced = TracedSteps(
        durations_ns=(device_ns,) * 9, mean_ns=device_ns, count=9, found_by="ProfilerStep"
    )
    work = Work(ops=(product,), calls=10)
    found = diagnose(
        Evidence().add(
            traced, device_time(device_ns / MS, components_ns={"compute": device_ns}), roof, work
        )
    )
    assert found.verdict.cls == "compute"
    assert found.verdict.healthy is healthy
    assert "of the device's data sheet" in found.verdict.summary


def test_it_is_none_without_its_parts() -> None:
    assert make_roofline(Evidence().add(ROOF), STEP) is None
    assert make_roofline(Evidence().add(WORK), STEP) is None
    assert make_roofline(Evidence().add(ROOF, WORK), None) is None


def test_the_report_shows_what_was_reached_and_what_limits_the_heaviest_ops() -> None:
    found = replace(diagnose(Evidence()), roofline=made())
    shown = render("terminal", document(found), Page(width=100))
    assert "What this machine reaches" in shown
    assert "38% reached" in shown
    assert "1.50 ms for 1,000 calls" in shown
    assert "aten::mm" in shown


@pytest.mark.parametrize(("best_ms", "said"), [(5, "TD622"), (30, None), (60, "TD605")])
def test_what_is_said_of_computing_follows_how_near_it_comes_to_the_roofline(
    best_ms: float, said: str | None
) -> None:
    """A device that computes all the time: far below its best rates, between, and near them."""
    roof, work = roofline(best_ms)
    op = replace(work.ops[0], device_ns=100.0 * MS)
    traced = TracedSteps(
        durations_ns=(100 * MS,) * 9, mean_ns=100 * MS, count=9, found_by="ProfilerStep"
    )
    device = device_time(100, components_ns={"compute": 100 * MS})
    found = diagnose(Evidence().add(traced, device, roof, replace(work, ops=(op,))))
    assert (found.verdict.cls, found.verdict.healthy) == ("compute", said == "TD605")
    codes = {x.code for x in found.findings if x.advisory}
    assert codes & {"TD605", "TD622"} == ({said} if said else set())
