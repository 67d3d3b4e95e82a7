"""Exposed communication: what is said of it, and what of it can be won."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose import diagnose
from tdiag.diagnose.engine import run_rule
from tdiag.evidence.ranks import REDUCER, CollectiveLine, Collectives
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import (
    MS,
    at,
    budget,
    changing_late_rank,
    environment,
    op_line,
    ops,
    phases,
    stack,
    stacks,
)
from tdiag.rules.td903_exposed_communication import on_cpu
from tests.trace.making import call, copy, evidence_of, launched, op, step

EXPOSED = find("TD903")


def test_communication_on_a_cpu_speaks_of_ddp_only_where_it_is() -> None:
    reducing, by_hand = (run_rule(EXPOSED, on_cpu(40, name)) for name in (REDUCER, "all_reduce"))
    assert isinstance(reducing, Finding) and isinstance(by_hand, Finding)
    assert reducing.at_best_ns == by_hand.at_best_ns == 40 * MS
    assert "bucket_cap_mb" in reducing.fix.text
    assert "bf16" not in reducing.fix.text  # DDP refuses that hook on a CPU
    assert "bucket" not in by_hand.fix.text and "async_op=True" in by_hand.fix.text
    assert "in all_reduce at train.py:30" in by_hand.summary


def test_an_exchange_of_gradients_by_hand_takes_its_copies_along() -> None:
    """The function flattens the gradients, sums them over the ranks, and copies them back. That is
    no heavy update, which could be made in every k-th step."""
    function = at(30, "average_gradients")
    wait = CollectiveLine(name="all_reduce", at=function, count=1.0, wall_ns=40 * MS)
    lines = ops(
        op_line(29, "optimizer", 1, at=at(29, "average_gradients"), elapsed_ns=12 * MS),
        op_line(30, "optimizer", 1, at=function, elapsed_ns=39 * MS),
        op_line(31, "optimizer", 9, at=at(31, "average_gradients"), elapsed_ns=6 * MS),
        op_line(50, "optimizer", 20, at=at(50, "main"), elapsed_ns=2 * MS),
    )
    parts = {"forward": 20, "backward": 40, "optimizer": 40}
    sampled = stacks(tuple(stack(n, 0.2, function="average_gradients") for n in (29, 30, 31)))
    evidence = Evidence().add(
        budget(**parts, comm=40), phases(**parts), lines, sampled, Collectives(lines=(wait,))
    )
    found = run_rule(EXPOSED, evidence)
    assert isinstance(found, Finding)
    assert found.at_best_ns == (40 + 40 * 18 / 20) * MS
    assert "average_gradients takes 36.0 ms besides" in found.summary
    assert "leave out what is not trained" in found.fix.text
    assert run_rule(find("TD726"), evidence) is None
    evidence.add(Collectives(lines=(replace(wait, at=at(77, "main")),)))
    assert isinstance(run_rule(find("TD726"), evidence), Finding)


def test_collectives_of_sharded_parameters_are_not_the_users_to_start() -> None:
    """FSDP calls them, and only its settings overlap them."""
    for name, said in (("all_gather_single", "reshard_after_forward"), ("wait", "prefetching"),
                       ("reduce_scatter_single", "Sharded gradients")):  # fmt: skip
        found = run_rule(EXPOSED, on_cpu(40, name, "torch.distributed.fsdp._fully_shard._x"))
        assert isinstance(found, Finding)
        assert said in found.fix.text and "async_op" not in found.fix.text + found.fix.code


def test_of_communication_on_a_cpu_only_what_is_no_waiting_can_be_won() -> None:
    found = run_rule(EXPOSED, on_cpu(40).add(changing_late_rank(10, 30)))
    assert isinstance(found, Finding)
    assert found.at_best_ns == 10 * MS


@pytest.mark.parametrize(("waited_ms", "promised"), [(14, False), (16, True)])
def test_of_a_short_wait_on_a_cpu_nothing_is_promised(waited_ms: float, promised: bool) -> None:
    """Beside 60 ms of computing. Two ranks on one machine wait for each other, whatever they do."""
    found = run_rule(EXPOSED, on_cpu(waited_ms))
    assert isinstance(found, Finding) and (found.speedup is not None) is promised
    turns = changing_late_rank(0, waited_ms)
    late = run_rule(find("TD906"), on_cpu(waited_ms).add(turns))
    assert isinstance(late, Finding) and (late.speedup is not None) is promised


def test_communication_that_no_one_saw_is_not_judged() -> None:
    step = budget(forward=20, backward=40)
    alone, two = (environment(world_size=n) for n in (1, 2))
    assert run_rule(EXPOSED, Evidence().add(step, alone)) is None
    assert isinstance(run_rule(EXPOSED, Evidence().add(step, two)), Abstained)


def test_a_bare_trace_speaks_of_ddp_only_where_it_was_seen(tmp_path: Path) -> None:
    def advice(kernel_name: str, *asked: str) -> str:
        events = [step(1, 0, 2000), *launched("gemm", 0, 10, 500, 1)]
        events += launched(kernel_name, 20, 600, 1000, 2)
        events += [op(name, 30 + i, 1) for i, name in enumerate(asked)]
        evidence = evidence_of(tmp_path, events)
        diagnose(evidence)
        found = run_rule(find("TD903"), evidence)
        assert isinstance(found, Finding)
        return found.fix.text

    reduces = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    assert "bucket_cap_mb" in advice(reduces, "DistributedDataParallel.forward")
    assert "async_op" in advice(reduces, "c10d::allreduce_")  # tensor parallelism, by hand
    assert "FSDP" in advice("ncclDevKernel_AllGather_RING_LL(x)", "c10d::_allgather_base_")
    assert "FSDP" in advice("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)")
    exchange = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    assert "all-to-all" in advice(
        exchange, "c10d::alltoall_base_", "DistributedDataParallel.forward"
    )
    assert "pipeline" in advice(exchange, "nccl:send 0->1")
    generic = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"  # RCCL: one name for all
    assert "bucket_cap_mb" in advice(
        generic, "c10d::allreduce_", "torch.distributed.ddp.reducer::copy_bucket_to_grad"
    )


def test_copies_without_any_compute_have_nothing_to_overlap(tmp_path: Path) -> None:
    pinned = "Memcpy HtoD (Pinned -> Device)"
    events = [step(1, 0, 900), call("cudaMemcpyAsync", 0, 5, 1), copy(pinned, 10, 800, 1)]
    evidence = evidence_of(tmp_path, events)
    diagnose(evidence)
    found = run_rule(find("TD302"), evidence)
    assert isinstance(found, Abstained) and "no kernels ran" in found.missing
