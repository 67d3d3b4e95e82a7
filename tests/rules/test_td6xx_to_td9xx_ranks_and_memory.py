"""Whom ranks wait for and why; device memory that is full or spare; sizes off the multiple."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.diagnose.ranks import of_ranks
from tdiag.diagnose.verdict import judge
from tdiag.evidence.device import Syncs, Transfers
from tdiag.evidence.from_trace.ranks_of_traces import compare_ranks
from tdiag.evidence.machine import System
from tdiag.evidence.memory import DeviceMemory
from tdiag.evidence.ops import MatrixOps
from tdiag.evidence.ranks import Communication, Ranks, RankTime
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import Rule, find
from tdiag.rules.examples import (
    GB,
    MS,
    at,
    budget,
    copy,
    device_time,
    environment,
    family,
    kernels,
    loaders,
    matrix_op,
    rank_time,
    ranks_of,
    sync,
    system,
)

STRAGGLER, SMALL, SIZES, FULL = find("TD902"), find("TD606"), find("TD609"), find("TD806")


def finding(code: str, evidence: Evidence) -> Finding:
    found = run_rule(find(code), evidence)
    assert isinstance(found, Finding), found
    return found


def late(communication_ms: float, /, **components_ms: float) -> Evidence:
    """Rank 2 of three, of which the others compute 40 ms and communicate 60."""
    others = [rank_time(rank, 60, compute=40, comm=60) for rank in (0, 1)]
    return Evidence().add(ranks_of(*others, rank_time(2, communication_ms, **components_ms)))


@pytest.mark.parametrize(
    ("communication_ms", "fires"),
    [(55.0, True), (55.1, False)],  # of a step of 100 ms
)
def test_what_others_wait_must_be_noticeable(communication_ms: float, fires: bool) -> None:
    waiting = 60 - communication_ms
    evidence = late(communication_ms, data_wait=waiting, compute=40, comm=communication_ms)
    assert isinstance(run_rule(STRAGGLER, evidence), Finding) is fires


@pytest.mark.parametrize(("longer_ms", "told"), [(25, True), (24.9, False)])
def test_a_cause_must_explain_half_of_the_wait(longer_ms: float, told: bool) -> None:
    """The others wait 50 ms; the rest of its step is not its own work."""
    rest = 50 - longer_ms
    evidence = late(10, launch=longer_ms, compute=40, comm=10, unattributed=rest)
    found = run_rule(STRAGGLER, evidence)
    assert isinstance(found, Finding if told else Abstained)


@pytest.mark.parametrize(("longer_ms", "named"), [(25, True), (24.9, False)])
def test_the_verdict_names_a_rank_where_the_rule_does(longer_ms: float, named: bool) -> None:
    evidence = late(10, launch=longer_ms, compute=40, comm=10, unattributed=50 - longer_ms)
    step = budget(device=True, compute=40, comm=10, launch=50)
    summary = of_ranks(judge(evidence, step, ()), evidence.get(Ranks)).summary
    assert ("Rank 2 makes the other 2 ranks wait" in summary) is named


def test_longer_in_one_thing_and_shorter_in_another_is_not_late() -> None:
    others = [rank_time(n, 60, sync=30, compute=10, comm=60) for n in (0, 1)]
    odd = rank_time(2, 10, data_wait=30, compute=10, comm=10, unattributed=50)
    assert isinstance(run_rule(STRAGGLER, Evidence().add(ranks_of(*others, odd))), Abstained)


def test_the_rank_and_its_cause_are_named() -> None:
    found = finding("TD902", late(10, sync=50, compute=40, comm=10))
    assert found.summary == (
        "Rank 2 makes the other 2 ranks wait 50.0 ms per step (50%): it spends 50.0 ms more"
        " synchronising than they do."
    )
    assert found.fix.text.startswith("On rank 2: ")
    assert found.advisory, "its cause claims the gain"


def test_a_cause_without_words_of_its_own_is_named_all_the_same() -> None:
    found = finding("TD902", late(10, python_loss=50, compute=40, comm=10))
    assert "50.0 ms more in python loss than they do" in found.summary


def test_its_own_line_is_named_where_the_trace_holds_it() -> None:
    waits = late(10, sync=50, compute=40, comm=10)
    waits.add(Syncs(syncs=(sync(at=at(70)), sync(at=at(80), idle_after_ns=5.0 * MS))))
    assert "On rank 2 at train.py:80: " in finding("TD902", waits).fix.text
    copies = late(10, h2d=50, compute=40, comm=10)
    back = copy(direction="d2h", at=at(61), exposed_ns=9.0 * MS)
    copies.add(Transfers(copies=(copy(at=at(60)), back)))
    assert "On rank 2 at train.py:60: " in finding("TD902", copies).fix.text


def test_ranks_that_were_not_measured_are_not_judged() -> None:
    ranks = ranks_of(rank_time(0, 60, compute=40, comm=60), rank_time(1, None, compute=90))
    assert isinstance(run_rule(STRAGGLER, Evidence().add(ranks)), Abstained)
    bare = [
        RankTime(rank=n, step_ns=1e8, components_ns={}, communication_ns=n * 4e7) for n in (0, 1)
    ]
    assert isinstance(run_rule(STRAGGLER, Evidence().add(ranks_of(*bare))), Abstained)


@pytest.mark.parametrize(("world", "abstains"), [(1, False), (8, True)])
def test_one_rank_alone_waits_for_nobody(world: int, abstains: bool) -> None:
    """Of eight ranks one was traced: what the others did is not known."""
    found = run_rule(STRAGGLER, Evidence().add(environment(world_size=world)))
    assert isinstance(found, Abstained) is abstains
    assert isinstance(found, Finding) is False


def products(size: int = 50257, **changes: object) -> Evidence:
    op = matrix_op("aten::mm", (8192, 768), (768, size), device_ns=9.0 * MS)
    return SIZES.fires().add(MatrixOps(ops=(replace(op, **changes),)))


@pytest.mark.parametrize(
    ("evidence", "fires"),
    [
        (products(), True),
        (products(50256), False),
        (products(63), False),  # an eighth of it would be padding
        (products(65), True),
        (products(dims=((63, 768), (768, 50257))), False),
        (products(dims=((12, 512, 64), (12, 64, 509)), name="aten::bmm"), True),
        (products(dims=((8192, 767), (767, 768))), False),  # by strides that are not recorded
        (products(dtypes=("float", "float")), False),
        (products(dtypes=("c10::Half", "c10::Half")), True),
        (products(name="aten::convolution"), False),
        (products(dims=((50257,), (8192, 768), (768, 50257)), dtypes=("c10::Half",) * 3), True),
        (products(dims=(), dtypes=()), False),  # the recorded text was cut
        (products(dims=((768,), (768, 50257))), False),
        (products(device_ns=2.5 * MS), True),  # 5 % of 50 ms
        (products(device_ns=2.49 * MS), False),
        (products(device_ns=None), False),
    ],
)
def test_sizes_off_the_multiple_are_told_by_the_rows_of_the_result(
    evidence: Evidence, fires: bool
) -> None:
    assert isinstance(run_rule(SIZES, evidence), Finding) is fires


def test_the_size_to_pad_to_is_written_out() -> None:
    assert "50257 to 50264" in finding("TD609", products()).fix.action


@pytest.mark.parametrize("device", ["AMD Instinct MI210", "no device traced", ""])
def test_other_devices_want_other_sizes(device: str) -> None:
    evidence = products().add(environment(device=device))
    assert isinstance(run_rule(SIZES, evidence), Abstained)


def on_device(evidence: Evidence, **changes: object) -> Evidence:
    known = evidence.get(System)
    assert known is not None
    return evidence.add(replace(known, **changes))


@pytest.mark.parametrize(("used_gb", "fires"), [(36, True), (36.1, False)])
def test_a_batch_can_grow_if_twice_of_what_is_used_fits(used_gb: float, fires: bool) -> None:
    """Nine tenths of 80 GB are 72."""
    evidence = on_device(SMALL.fires(), gpu_memory_used_bytes=round(used_gb * GB))
    assert isinstance(run_rule(SMALL, evidence), Finding) is fires


def test_a_small_batch_is_told_with_the_occupancy_that_it_gives() -> None:
    """30 ms at a fifth and 10 ms at three fifths, of all that has an estimate: three tenths."""
    families = (
        family("gemm", 30, occupancy_frac=0.2),
        family("norm", 10, occupancy_frac=0.6),
        family("other", 50),
    )
    found = finding("TD606", SMALL.fires().add(kernels(*families)))
    told = [x.value for x in found.evidence if x.name == "occupancy of the kernels"]
    assert told == [pytest.approx(0.3)]


@pytest.mark.parametrize(("used_gb", "largest"), [(18, 256), (18.1, 128), (9, 512)])
def test_the_largest_batch_that_fits_is_named(used_gb: float, largest: int) -> None:
    evidence = on_device(SMALL.fires(), gpu_memory_used_bytes=round(used_gb * GB))
    assert f"A batch of {largest} fits." in finding("TD606", evidence).summary


@pytest.mark.parametrize(("samples", "fires"), [(128, True), (127, False), (None, True)])
def test_no_batch_is_larger_than_the_dataset(samples: int | None, fires: bool) -> None:
    evidence = SMALL.fires().add(loaders(dataset_len=samples))
    assert isinstance(run_rule(SMALL, evidence), Finding) is fires


@pytest.mark.parametrize(("starved_ms", "fires"), [(1.0, True), (0.99, False)])
def test_a_device_that_is_busy_is_not_said_to_want_more(starved_ms: float, fires: bool) -> None:
    evidence = SMALL.fires().add(device_time(20, launch_starved_ns=starved_ms * MS))
    assert isinstance(run_rule(SMALL, evidence), Finding) is fires


def test_batches_made_by_hand_have_no_size_to_double() -> None:
    assert run_rule(SMALL, SMALL.fires().add(loaders(batch_size=None))) is None


@pytest.mark.parametrize("rule", [SMALL, FULL], ids=lambda rule: rule.code)
def test_memory_that_cannot_be_told_is_not_judged(rule: Rule) -> None:
    several = rule.fires().add(environment(device_count=8))
    assert isinstance(run_rule(rule, several), Abstained)
    assert isinstance(run_rule(rule, rule.fires().add(system())), Abstained)


@pytest.mark.parametrize("rule", [SMALL, FULL], ids=lambda rule: rule.code)
def test_a_run_without_a_device_has_no_device_memory(rule: Rule) -> None:
    evidence = rule.fires().add(budget(forward=10, backward=20), environment())
    assert run_rule(rule, evidence) is None


@pytest.mark.parametrize(("used_gb", "fires"), [(72, True), (71.9, False)])
def test_memory_is_full_from_nine_tenths_on(used_gb: float, fires: bool) -> None:
    evidence = on_device(FULL.fires(), gpu_memory_used_bytes=round(used_gb * GB))
    assert isinstance(run_rule(FULL, evidence), Finding) is fires


def test_full_memory_from_which_nothing_is_allocated_is_well_used() -> None:
    calm = FULL.fires().add(device_time(50, allocations_per_step=0.0))
    assert run_rule(FULL, calm) is None
    assert run_rule(FULL, FULL.fires().add(budget(device=True, compute=50))) is None
    assert isinstance(run_rule(FULL, FULL.fires().add(device_time(50))), Abstained)


def test_idle_time_of_allocations_is_all_that_can_be_won() -> None:
    found = finding("TD806", FULL.fires())
    assert found.components == ("alloc",)
    assert found.speedup is not None
    assert (found.speedup.low, found.speedup.high) == (1.0, pytest.approx(50 / 44, abs=0.001))


def test_what_the_allocator_holds_for_no_tensor_is_shown() -> None:
    held = DeviceMemory(
        peak_allocated_bytes=60 * GB, peak_reserved_bytes=70 * GB, capacity_bytes=80 * GB
    )
    measures = {m.name: m.value for m in finding("TD806", FULL.fires().add(held)).evidence}
    assert measures["reserved but unused, at the peaks"] == 10 * GB


def test_the_example_of_ranks_is_merged_as_traces_are() -> None:
    example = STRAGGLER.fires().get(Ranks)
    assert example is not None
    traced = {rank.rank: Evidence() for rank in example.ranks}
    for rank in example.ranks:
        traced[rank.rank].add(device_time(rank.step_ns / MS, components_ns=rank.components_ns))
        total = rank.communication_ns or 0.0
        traced[rank.rank].add(Communication(total_ns=total, exposed_ns=total, count=1))
    assert compare_ranks(traced) == example


@pytest.mark.parametrize(("used_gb", "given_back"), [(71, True), (72, False)])
def test_memory_is_full_or_given_back_never_both(used_gb: int, given_back: bool) -> None:
    evidence = Evidence().add(
        budget(device=True, compute=44, alloc=6), device_time(50, allocations_per_step=12.0),
        system(gpu_memory_used_bytes=used_gb * GB, gpu_memory_total_bytes=80 * GB),
        environment(device="NVIDIA H200", device_count=1),
    )  # fmt: skip
    assert isinstance(run_rule(find("TD809"), evidence), Finding) is given_back
    assert isinstance(run_rule(FULL, evidence), Finding) is not given_back
