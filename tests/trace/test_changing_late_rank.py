"""Ranks of which now one comes last to a collective, now another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.from_trace.ranks_of_traces import merge_ranks
from tdiag.evidence.from_trace.trace_files import TracedFile, read_files
from tdiag.evidence.ranks import Communication, Ranks
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tests.trace.making import Event, launched, op, step, write

SENT = 100  # µs that a collective takes once all are there


def job(
    folder: Path, *computes: Sequence[float], skew: float = 50.0, drift: float = 0.0, more: int = 0
) -> Evidence:
    """The steps of each rank, so many µs of computing each, then a collective. The clock of each
    is ``skew`` µs behind that of the one before; the last one's drifts by so many µs a step, and
    its trace has so many collectives more."""
    last = len(computes) - 1
    longest = [max(ranks) for ranks in zip(*computes, strict=True)]
    files = []
    for rank, mine in enumerate(computes):
        events: list[Event] = []
        at = 5000 + skew * rank
        for number, (compute, most) in enumerate(zip(mine, longest, strict=True)):
            events += [
                step(number, at, most + SENT),
                op("aten::mm", at, 10),
                *launched("gemm", at, at, compute, 2 * number + 1),
                *launched(
                    "ncclDevKernel_AllReduce", at + 5, at + compute, most + SENT - compute,
                    2 * number + 2,
                ),
            ]  # fmt: skip
            at += most + SENT + (drift if rank == last else 0)
        if rank == last:
            for extra in range(more):
                events += launched("ncclDevKernel_Broadcast", 5060, 5070 + extra, 1, 900 + extra)
        info = {"rank": rank, "world_size": len(computes)}
        files.append(write(folder / f"r{rank}.json", events, distributedInfo=info))
    found = read_files(files)
    evidence = {f.rank or 0: f.evidence for f in found if isinstance(f, TracedFile)}
    return merge_ranks(evidence)


def ranks_of(evidence: Evidence) -> Ranks:
    found = evidence.get(Ranks)
    assert found is not None
    return found


def findings(evidence: Evidence) -> dict[str, Finding]:
    return {found.code: found for found in diagnose(evidence).findings}


CHANGING = ([300, 700, 300, 700], [700, 300, 700, 300])


def test_waiting_for_a_rank_that_changes_is_counted_apart(tmp_path: Path) -> None:
    evidence = job(tmp_path, *CHANGING)
    ranks = ranks_of(evidence)
    assert ranks.waited_ns == pytest.approx(0)
    assert ranks.shortest_ns == pytest.approx(100_000)
    assert ranks.changing_ns == pytest.approx(200_000)  # 400 µs at every other step
    found = findings(evidence)
    assert "TD902" not in found
    most = {code: found[code].at_best_ns for code in ("TD903", "TD906")}
    assert most == {"TD903": pytest.approx(100_000), "TD906": pytest.approx(200_000)}
    verdict = diagnose(evidence).verdict
    assert verdict.cls == "comm"
    assert verdict.summary.startswith(
        "The ranks wait for each other at least 200 µs per step (25%), and which rank is late"
        " changes from step to step. 38% of the step goes to "
    )


def test_a_rank_that_is_late_on_the_whole_is_no_turn(tmp_path: Path) -> None:
    evidence = job(tmp_path, [300] * 4, [700] * 4)
    ranks = ranks_of(evidence)
    assert (ranks.slowest, ranks.waited_ns) == (1, pytest.approx(400_000))
    assert ranks.changing_ns == pytest.approx(0)
    assert "TD906" not in findings(evidence)


def test_both_at_once_are_told_apart(tmp_path: Path) -> None:
    """Rank 1 is late three times of four."""
    ranks = ranks_of(job(tmp_path, [300, 300, 300, 700], [700, 700, 700, 300]))
    assert (ranks.slowest, ranks.waited_ns) == (1, pytest.approx(200_000))
    assert ranks.changing_ns == pytest.approx(100_000)


def test_ranks_that_come_together_wait_for_nobody(tmp_path: Path) -> None:
    evidence = job(tmp_path, [500, 510, 490, 500], [500, 490, 510, 500])
    assert "TD906" not in findings(evidence)
    assert findings(evidence)["TD903"].at_best_ns == pytest.approx(100_000)


@pytest.mark.parametrize("how", [{"more": 1}, {"drift": 40.0}, {"skew": 800}], ids="-".join)
def test_collectives_that_cannot_be_paired_tell_nothing(
    how: dict[str, float], tmp_path: Path
) -> None:
    """There are more of them on one rank, they do not end together, or they are of other steps."""
    evidence = job(tmp_path, *CHANGING, **how)  # type: ignore[arg-type]
    ranks = ranks_of(evidence)
    assert (ranks.shortest_ns, ranks.changing_ns) == (None, None)
    told = {a.code: a.missing for a in diagnose(evidence).abstained}
    assert told["TD906"] == "the ranks' collectives could not be paired"
    assert "TD903" in findings(evidence)


def test_each_collective_is_told_with_its_end_and_what_nothing_hides(tmp_path: Path) -> None:
    evidence = job(tmp_path, [300, 300])
    found = evidence.get(Communication)
    assert found is not None
    assert found.collectives == ((5_400_000, 100_000), (5_800_000, 100_000))
