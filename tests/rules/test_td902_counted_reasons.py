"""A late rank whose reason was counted: in no one part of the step, and where work is in doubt."""

from __future__ import annotations

import msgspec
import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.diagnose.straggler import of_ranks
from tdiag.evidence.ranks import Beside, LateRank
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Module, Modules
from tdiag.model.diagnosis import Abstained, Verdict
from tdiag.rules.examples import MS, budget, rank_time, ranks_of

from .test_td6xx_to_td9xx_ranks_and_memory import (
    AS_MUCH_DATA,
    AS_MUCH_WORK,
    STRAGGLER,
    at,
    beside,
    finding,
    late_with,
)


def test_more_data_is_the_verdict_even_where_it_is_in_doubt_how_much_is_work() -> None:
    said = "80% of the step is forward: how much is work is unknown"
    doubtful = Verdict(cls="unknown", share=0.8, confidence=0.0, runner_up="compute", summary=said)
    found = of_ranks(doubtful, late_with({"samples": beside(64, 32)}))
    assert (found.cls, found.share, found.confidence) == ("straggler", 0.5, 0.6)
    assert "have more data: 64 samples" in found.summary
    slower = of_ranks(doubtful, late_with({**AS_MUCH_DATA, **AS_MUCH_WORK}))
    assert (slower.cls, slower.confidence) == ("unknown", 0.0)


@pytest.mark.parametrize(("share", "cls"), [(0.22, "straggler"), (0.7, "overhead")])
def test_more_work_is_the_verdict_unless_another_cause_takes_as_long(
    share: float, cls: str
) -> None:
    """The others wait for half of its step: a pipeline's first stage has most of the layers."""
    own = Verdict(cls="overhead", share=share, confidence=0.9, runner_up="compute", summary="…")
    found = of_ranks(own, late_with({**AS_MUCH_DATA, "calls": beside(200, 100)}))
    assert found.cls == cls
    slower = of_ranks(own, late_with({**AS_MUCH_DATA, **AS_MUCH_WORK}))
    assert slower.cls == "overhead"


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({**AS_MUCH_DATA, "calls": beside(200, 100)}, "It has more work: 200 torch calls"),
        ({**AS_MUCH_DATA, **AS_MUCH_WORK}, "It does the same work as they do"),
        (
            {**AS_MUCH_DATA, **AS_MUCH_WORK, "queued_ns": beside(30 * MS, 4 * MS)},
            "(50%). Its main thread waits 30.0 ms per step for a free core, theirs 4.00 ms.",
        ),
    ],
)
def test_more_work_and_a_slow_machine_need_not_be_in_one_part_of_the_step(
    about: dict[str, Beside], said: str
) -> None:
    """A wait of 40 ms: 13 more in the forward, 14 in the loss and 13 in the backward."""
    others = rank_time(0, 40, forward=13, loss=14, backward=13, comm=40)
    own = rank_time(1, 0, forward=26, loss=28, backward=26)
    evidence = Evidence().add(ranks_of(others, own), LateRank(rank=1, **about))
    assert said in finding("TD902", evidence).summary
    # Two ranks share what one has more; a slow machine stays slow.
    evidence.add(budget(forward=26, loss=28, backward=26))
    won = finding("TD902", evidence).at_best_ns
    assert won == (20 * MS if "more work" in said else 0)
    unknown = Evidence().add(ranks_of(others, own), LateRank(rank=1))
    assert isinstance(run_rule(STRAGGLER, unknown), Abstained)


@pytest.mark.parametrize("more", [True, False])
def test_more_work_has_the_line_at_which_it_enters_the_model(more: bool) -> None:
    others = rank_time(0, 40, forward=13, backward=13, comm=40)
    own = rank_time(1, 0, forward=33, backward=33)
    work = {"calls": beside(100, 100), "flops": beside(300, 100)} if more else AS_MUCH_WORK
    late = LateRank(rank=1, **{**AS_MUCH_DATA, **work})
    model = Module(
        name="Net", at=at(10), parameters=1000, parameter_bytes=4000, is_loss=False,
        calls_per_step=1.0, trained_at=at(54),
    )  # fmt: skip
    evidence = Evidence().add(ranks_of(others, own), late, Modules(modules=(model,)))
    assert finding("TD902", evidence).location == (at(54) if more else None)


@pytest.mark.parametrize(
    ("line", "alone"),
    [
        (beside(50 * MS, 0), True),
        (beside(50 * MS, 1 * MS), True),  # a sample or two
        (beside(50 * MS, 10 * MS), False),
        (beside(20 * MS, 0), False),  # of 56 ms more
    ],
)
def test_what_only_this_rank_does_can_be_shared(line: Beside, alone: bool) -> None:
    """Rank 0 prepares the batches of both, then scatters them."""
    own, other = rank_time(0, 10, prepare=66, forward=10), rank_time(1, 66, prepare=10, forward=10)
    late = LateRank(rank=0, line=at(36), line_ns=line)
    step = budget(prepare=66, forward=10, comm=10)
    found = finding("TD902", Evidence().add(ranks_of(own, other), late, step))
    assert found.location == at(36)
    assert found.summary.endswith(" per step." if alone else "than they do.")
    assert ("Only this rank runs the line at " in found.summary) is alone
    assert found.at_best_ns == (28 * MS if alone else 0)


def test_a_short_wait_for_a_core_does_not_explain_it() -> None:
    late = late_with({**AS_MUCH_DATA, "queued_ns": beside(20 * MS, 4 * MS)})  # of 40 ms
    assert "core" not in finding("TD902", late).summary
    late = late_with({**AS_MUCH_DATA, "queued_ns": beside(30 * MS, 4 * MS)})
    assert finding("TD902", late).location is None


def test_more_data_is_named_even_if_the_rank_also_waits_for_a_core() -> None:
    """It computes longer, so it also waits longer on a crowded machine."""
    crowded = {"samples": beside(64, 32), "queued_ns": beside(30 * MS, 4 * MS)}
    found = finding("TD902", late_with(crowded))
    assert found.summary.endswith(
        "64 samples, the others' 32. Its main thread waits 30.0 ms per step for a free core, theirs"
        " 4.00 ms."
    )
    assert found.location == at(7)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (beside(30 * MS, 0), True),  # new: of 80 ms, the others' 40
        (beside(52 * MS, 14 * MS), True),  # the rest: 28 instead of 26 ms
        (beside(40 * MS, 20 * MS), False),  # everything takes twice as long
        (beside(45 * MS, 20 * MS), False),  # 10 of its 25 ms more are beyond that
    ],
)
def test_a_line_is_named_only_if_it_is_slower_than_the_rest(line: Beside, named: bool) -> None:
    evidence = late_with({})
    known = evidence.get(LateRank)
    assert known is not None
    evidence.add(msgspec.structs.replace(known, line_ns=line))
    assert finding("TD902", evidence).location == (at(9) if named else None)
