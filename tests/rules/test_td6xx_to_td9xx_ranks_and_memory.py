"""Whom ranks wait for and why; device memory that is full or spare; sizes off the multiple."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.diagnose.straggler import of_ranks, with_its_first_finding
from tdiag.diagnose.verdict import judge
from tdiag.evidence.device import Syncs, Transfers
from tdiag.evidence.from_trace.ranks_of_traces import compare_ranks
from tdiag.evidence.memory import DeviceMemory
from tdiag.evidence.ranks import Beside, Communication, LateRank, Ranks, RankTime
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import MatrixOps
from tdiag.model.diagnosis import Abstained, Finding, Fix
from tdiag.rules.catalogue import Rule, find
from tdiag.rules.examples import (
    GB,
    MS,
    at,
    budget,
    copy,
    device_holds,
    device_time,
    environment,
    family,
    kernels,
    loaders,
    matrix_op,
    rank_time,
    ranks_of,
    sync,
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
    summary = of_ranks(judge(evidence, step, ()), evidence).summary
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


def beside(own: float, others: float, error: float = 0.0) -> Beside:
    return Beside(own=own, others=others, error=error)


AS_MUCH_DATA = {"samples": beside(32, 32), "batch_bytes": beside(4e4, 4e4)}
AS_MUCH_WORK = {"calls": beside(100, 100), "flops": beside(2e9, 2e9)}


def late_with(about: dict[str, Beside], **components_ms: float) -> Evidence:
    """Rank 1 of two that take 30 ms in forward and 10 in backward; the other waits 40 ms for it."""
    first = rank_time(0, 40, forward=30, backward=10, comm=40)
    second = rank_time(1, 0, **(components_ms or {"forward": 60, "backward": 20}))
    known = LateRank(rank=1, dealt_at=at(7), line=at(9), line_ns=beside(3e7, 0), **about)
    return Evidence().add(ranks_of(first, second), known)


def test_a_rank_with_more_samples_is_reported_where_they_are_dealt_out() -> None:
    found = finding("TD902", late_with({**AS_MUCH_WORK, "samples": beside(64, 32)}))
    assert found.summary == (
        "Rank 1 makes the other rank wait 40.0 ms per step (50%). Its batches have more data: 64"
        " samples, the others' 32."
    )
    assert found.location == at(7)


def test_more_data_need_not_be_in_one_part_of_the_step() -> None:
    """No part alone explains half of the wait."""
    parts = {"data_wait": 13, "forward": 43, "backward": 24}
    assert isinstance(run_rule(STRAGGLER, late_with({}, **parts)), Abstained)
    assert finding("TD902", late_with({"samples": beside(64, 32)}, **parts)).location == at(7)


def test_longer_samples_are_more_data() -> None:
    longer = {"samples": beside(32, 32), "batch_bytes": beside(8e4, 4e4, 1e4)}
    assert "78.1 KiB, the others' 39.1 KiB for as many samples (longer samples, or more" in (
        finding("TD902", late_with(longer)).summary
    )


@pytest.mark.parametrize(
    "sizes",
    [
        beside(5e4, 4e4),  # a quarter more data does not double the time
        beside(8e4, 4e4, 2e4),  # chance
    ],
)
def test_data_that_does_not_explain_it_is_not_the_reason(sizes: Beside) -> None:
    assert "data" not in finding("TD902", late_with({"batch_bytes": sizes})).summary


def test_more_work_on_as_much_data_is_reported_with_the_line() -> None:
    more = {**AS_MUCH_DATA, "calls": beside(120, 100), "flops": beside(4e9, 2e9)}
    found = finding("TD902", late_with(more))
    assert found.summary.endswith(
        "It has more work: 120 torch calls and 4.00 GFLOP per step, the others 100 torch calls and"
        " 2.00 GFLOP."
    )
    assert found.location == at(9)


def test_the_same_work_that_takes_longer_is_a_slow_machine() -> None:
    found = finding("TD902", late_with({**AS_MUCH_DATA, **AS_MUCH_WORK}))
    assert found.summary.endswith(
        "It does the same work as they do (100 torch calls and 2.00 GFLOP per step, and as much"
        " data) at 50% of their speed."
    )
    assert found.location is None
    assert "no change to the script helps" in found.fix.text


@pytest.mark.parametrize(
    ("about", "parts"),
    [
        # Something without torch calls, in one part: a log that only this rank writes.
        ({**AS_MUCH_DATA, **AS_MUCH_WORK}, {"forward": 70, "backward": 10}),
        (AS_MUCH_DATA, {}),  # its work is not known
        (AS_MUCH_WORK, {}),  # its data is not known
        ({**AS_MUCH_DATA, "calls": beside(110, 100)}, {}),  # which does not double the time
    ],
)
def test_a_slow_machine_is_not_concluded_from_less(
    about: dict[str, Beside], parts: dict[str, float]
) -> None:
    found = finding("TD902", late_with(about, **parts))
    assert found.summary.endswith("more in forward than they do.")
    assert found.location == at(9)


def test_the_first_finding_about_the_late_part_is_named() -> None:
    """Not the larger one about another part, which all ranks share."""
    evidence = late_with({}, forward=30, backward=10, data_wait=40)
    evidence.add(budget(data_wait_io=40, forward=30, backward=10))
    about = [
        Finding(
            code=code, name=f"name-{code}", cls="x", summary="", location=at(line), evidence=(),
            recoverable_ns=1, speedup=None, why_gain="", fix=Fix("Do.", "safe"), components=parts,
        )
        for code, line, parts in (("TD5", 50, ("forward",)), ("TD1", 60, ("data_wait_io",)))
    ]  # fmt: skip
    findings = [*about, finding("TD902", evidence)]
    said = with_its_first_finding(findings, evidence)[-1]
    assert said.fix.text.endswith("The first finding about it: TD1 name-TD1 at train.py:60.")
    assert said.location == at(60)


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


@pytest.mark.parametrize(("used_gb", "fires"), [(36, True), (36.1, False)])
def test_a_batch_can_grow_if_twice_of_what_is_used_fits(used_gb: float, fires: bool) -> None:
    """Nine tenths of 80 GB are 72."""
    evidence = SMALL.fires().add(device_holds(round(used_gb * GB)))
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
    evidence = SMALL.fires().add(device_holds(round(used_gb * GB)))
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
def test_memory_that_was_not_read_is_not_judged(rule: Rule) -> None:
    """What NVML counts as used holds torch's cache and other programs' memory."""
    evidence = rule.fires()
    known = evidence.get(DeviceMemory)
    assert known is not None
    evidence.add(replace(known, capacity_bytes=None))
    assert isinstance(run_rule(rule, evidence), Abstained)
    del evidence.facts[DeviceMemory]
    assert isinstance(run_rule(rule, evidence), Abstained)


@pytest.mark.parametrize("rule", [SMALL, FULL], ids=lambda rule: rule.code)
def test_the_processes_own_device_is_judged_among_several(rule: Rule) -> None:
    assert isinstance(run_rule(rule, rule.fires().add(environment(device_count=8))), Finding)


@pytest.mark.parametrize("rule", [SMALL, FULL], ids=lambda rule: rule.code)
def test_a_run_without_a_device_has_no_device_memory(rule: Rule) -> None:
    evidence = rule.fires().add(budget(forward=10, backward=20), environment())
    assert run_rule(rule, evidence) is None


@pytest.mark.parametrize(("used_gb", "fires"), [(72, True), (71.9, False)])
def test_memory_is_full_from_nine_tenths_on(used_gb: float, fires: bool) -> None:
    evidence = FULL.fires().add(device_holds(round(used_gb * GB)))
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
        peak_allocated_bytes=72 * GB, peak_reserved_bytes=79 * GB, capacity_bytes=80 * GB
    )
    measures = {m.name: m.value for m in finding("TD806", FULL.fires().add(held)).evidence}
    assert measures["reserved but unused, at the peaks"] == 7 * GB


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
        device_holds(used_gb * GB),
    )  # fmt: skip
    assert isinstance(run_rule(find("TD809"), evidence), Finding) is given_back
    assert isinstance(run_rule(FULL, evidence), Finding) is not given_back
