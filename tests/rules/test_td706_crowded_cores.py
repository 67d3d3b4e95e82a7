"""Several trainings on the same cores: what TD706 counts, and what it leaves alone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.machine import Busy
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.model.kind import Kind
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, budget, loaders, op_line, ops, roofline, system, threads
from tdiag.rules.td706_thread_count_off import crowd

THREADS = find("TD706")


def foreign(wants: float, torch: bool | None = True) -> Busy:
    return Busy(pid=7, name="python3", threads=3, cores=0.4, wants=wants, torch=torch)


def test_processes_of_one_run_are_counted_together() -> None:
    found = run_rule(THREADS, crowd(2, 2))
    assert isinstance(found, Finding)
    assert found.summary.startswith("2 processes of this run train at once with 4 threads on 2")
    assert "torch.set_num_threads(1) in each process" in found.fix.text
    assert found.fix.intervention == "torch.num_threads=1"
    assert found.speedup is not None
    assert found.speedup.high > 4  # measured: 4 to 7 times


def test_torchs_own_threads_in_workers_are_measured_by_their_change() -> None:
    waiting = budget(data_wait_cpu=50, forward=50), loaders(num_workers=2), system(cores_allowed=2)
    found = run_rule(THREADS, Evidence().add(*waiting, threads(2, worker_intra_op=4)))
    assert isinstance(found, Finding)
    assert found.fix.intervention == "loader.worker_threads=1"


@pytest.mark.parametrize(("each", "processes", "cores"), [(1, 2, 2.0), (1, 6, 2.0), (4, 2, 8.0)])
def test_a_thread_for_each_core_is_not_too_many(each: int, processes: int, cores: float) -> None:
    """Nor are more processes than cores, of one thread each: no number of threads helps them."""
    assert run_rule(THREADS, crowd(each, processes, cores=cores)) is None


@pytest.mark.parametrize(
    ("op_ns", "best_ms", "lost_ms"),
    [
        (2500, 10.0, 53.0),  # 66 ms of computing; the fixed cost of 200 calls is 3 ms
        (2500, 60.0, 3.0),
        (60_000, 10.0, 0.0),  # they take no longer than calls on nothing do here
    ],
)
def test_short_calls_that_are_split_wait_for_threads_without_a_core_too(
    op_ns: float, best_ms: float, lost_ms: float
) -> None:
    """16 threads on two cores; each call takes 0.1 ms, of which one thread needs far less."""
    step = budget(forward=20, loss=1, backward=40, optimizer=5)
    calls = ops(op_line(20, "forward", 200, elapsed_ns=20 * MS))
    prices = Dispatch(op_ns=op_ns / 2, grad_op_ns=op_ns)
    evidence = Evidence().add(step, threads(16), system(cores_allowed=2.0), calls, prices)
    found = run_rule(THREADS, evidence.add(*roofline(best_ms)))
    if not lost_ms:
        assert found is None
    else:
        assert isinstance(found, Finding)
        assert found.at_best_ns == pytest.approx(lost_ms * MS, rel=0.01)
        assert found.speedup is not None and found.speedup.low == 1.0


def test_another_training_of_the_machine_is_named_with_what_it_takes() -> None:
    found = run_rule(THREADS, crowd(2, 1, foreign(1.4)))
    assert isinstance(found, Finding)
    assert "1.4 of which another training needs (python3, pid 7, 3 threads)" in found.summary
    assert "torch.set_num_threads(1), or" in found.fix.text


@pytest.mark.parametrize(("work_ms", "most_ms"), [(1, 56), (40, 26), (70, None)])
def test_crowding_costs_no_more_than_the_work_leaves(work_ms: float, most_ms: int | None) -> None:
    """66 ms of computing: whatever its work needs at the machine's best rates, no threads save."""
    found = run_rule(THREADS, crowd(2, 1, foreign(1.4)).add(*roofline(work_ms)))
    assert isinstance(found, Finding) is (most_ms is not None)
    if isinstance(found, Finding) and most_ms:
        assert found.at_best_ns == pytest.approx(most_ms * MS, abs=1 * MS)


@pytest.mark.parametrize("torch", [False, None])
def test_other_programs_come_and_go(torch: bool | None) -> None:
    """Of them the verdict's confidence tells."""
    assert run_rule(THREADS, crowd(2, 1, foreign(1.4, torch))) is None


LARGE = op_line(30, "forward", 10, elapsed_ns=100 * MS)
STEP = budget(forward=100, backward=200)


def on_a_server(intra_op: int, *facts: Kind) -> Finding | None:
    """32 cores of two hardware threads each; nobody else is there."""
    server = system(
        cores_allowed=64.0, cores_machine=64, cores_physical=32, cores_used=0.9 * intra_op,
        machine_busy_cores=0.9 * intra_op + 1,
    )  # fmt: skip
    evidence = Evidence().add(STEP, threads(intra_op), server, ops(LARGE), *facts)
    found = run_rule(THREADS, evidence)
    assert not isinstance(found, Abstained)
    return found


def rates(used: float, allowed: float) -> tuple[Roof, Work]:
    """Products at these rates with the threads used, and with all that are allowed."""
    roof, work = roofline(10)
    in_force = replace(roof, flops_per_s={"float32": used}, threads=32)
    return replace(roof, flops_per_s={"float32": allowed}, threads=64, in_force=in_force), work


def test_a_thread_for_each_physical_core_is_torchs_default_and_enough() -> None:
    assert on_a_server(32) is None
    found = on_a_server(1)
    assert found is not None and found.at_best_ns > 0.9 * STEP.step_ns


def test_what_more_threads_save_at_best_is_what_they_did_when_tried() -> None:
    assert on_a_server(32, *rates(1e9, 1e9)) is None, "no faster"
    found = on_a_server(16, *rates(1e9, 1.25e9))
    assert found is not None
    assert found.at_best_ns == pytest.approx(0.2 * STEP.step_ns, rel=0.01)


def one_thread(**machine: object) -> Evidence:
    """A step of large calls, computed by one thread."""
    step = budget(forward=20, loss=1, backward=40, optimizer=5)
    large = ops(op_line(20, "forward", 10, elapsed_ns=20 * MS))
    return Evidence().add(step, threads(1), system(**machine), large)


@pytest.mark.parametrize(
    ("cores", "busy", "advised"),
    [
        (2, 1.02, 2),  # its one thread, and next to nothing else
        (2, 1.4, None),  # a second thread would share its core
        (8, 1.2, 8),
        (8, 3.0, 6),  # two workers or other programs
        (8, 7.9, None),
    ],
)
def test_too_few_threads_are_as_many_as_cores_are_free(
    cores: int, busy: float, advised: int | None
) -> None:
    found = run_rule(
        THREADS,
        one_thread(
            cores_allowed=float(cores), cores_machine=cores, cores_physical=cores,
            cores_used=1.0, machine_busy_cores=busy,
        ),
    )  # fmt: skip
    if advised is None:
        assert found is None
    else:
        assert isinstance(found, Finding)
        assert found.fix.intervention == f"torch.num_threads={advised}"
