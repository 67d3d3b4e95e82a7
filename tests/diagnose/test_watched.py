"""The verdict from samples alone: a class where they decide, none where they cannot."""

from __future__ import annotations

import pytest

from tdiag.diagnose import diagnose
from tdiag.diagnose.verdict import GUESS_CONFIDENCE
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Diagnosis, Verdict
from tdiag.model.place import Place
from tdiag.model.watched import Activity, Fetching, Watched, WatchedRank

COMPUTES = {"forward": 0.3, "backward": 0.5, "optimizer": 0.15, "other": 0.05}
LINE = Place("/u/train.py", 12, "load")


def diagnosed(
    shares: dict[str, float], *, samples: int = 500, error: float = 0.01, **more: object
) -> Diagnosis:
    activities = tuple(
        Activity(name=name, frac=frac, error_frac=error, at=LINE, at_frac=frac)
        for name, frac in sorted(shares.items(), key=lambda pair: -pair[1])
    )
    seen = Watched(pid=1, seconds=20.0, samples=samples, activities=activities, **more)  # type: ignore[arg-type]
    evidence = Evidence(otherwise="tdiag attach sees no steps").add(seen)
    evidence.missing[Steps] = "tdiag attach sees no steps"
    return diagnose(evidence)


def judged(shares: dict[str, float], **more: object) -> Verdict:
    return diagnosed(shares, **more).verdict  # type: ignore[arg-type]


def fetching(
    workers: int, fetch: float, on_core: float, queued: float = 0.0, read: float | None = 0.0
) -> Fetching:
    return Fetching(workers=workers, fetch_frac=fetch, cpu_frac=on_core, queued_frac=queued,
                    disk_frac=0.0, read_bytes_per_s=read, at=LINE, at_frac=0.8)  # fmt: skip


def waiting(frac: float) -> dict[str, float]:
    return {"data_wait": frac, "backward": 1 - frac}


@pytest.mark.parametrize(
    ("found", "cls"),
    [
        (fetching(2, fetch=0.97, on_core=0.94), "cpu"),
        (fetching(2, fetch=0.97, on_core=0.2, queued=0.74), "cpu"),  # a crowded machine
        (fetching(2, fetch=0.97, on_core=0.1), "io"),
        (fetching(2, fetch=0.6, on_core=0.55), "cpu"),  # what they wait for is the queue
        (fetching(2, fetch=0.2, on_core=0.2), "input"),  # they wait, too
        (fetching(0, fetch=0.8, on_core=0.98), "cpu"),
        (fetching(0, fetch=0.8, on_core=0.15), "io"),
        (fetching(0, fetch=0.8, on_core=0.14, queued=0.86), "cpu"),  # a crowded machine, again
        (fetching(0, fetch=0.95, on_core=0.06, queued=0.42), "io"),
        (fetching(0, fetch=0.5, on_core=0.5), "input"),  # either half may have been blocked
        (None, "input"),
    ],
)
def test_what_data_wait_waits_for(found: Fetching | None, cls: str) -> None:
    verdict = judged(waiting(0.8), fetching=found)
    assert verdict.cls == cls
    assert verdict.share == 0.8
    if found:
        assert "train.py:12 in load, 80%" in verdict.summary


def test_storage_is_only_named_if_it_was_read() -> None:
    slept = judged(waiting(0.8), fetching=fetching(2, 0.97, 0.1, read=0.0))
    read = judged(waiting(0.8), fetching=fetching(2, 0.97, 0.1, read=1e6))
    assert "something other than storage" in slept.summary
    assert "waiting for storage" in read.summary


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("checkpoint", "checkpoint"),
        ("evaluation", "eval"),
        ("comm", "comm"),
        ("logging", "logging"),
        ("loader start", "loader"),
    ],
)
def test_each_waste_has_its_class_and_line(name: str, cls: str) -> None:
    verdict = judged({name: 0.4, "backward": 0.6})
    assert (verdict.cls, verdict.share) == (cls, 0.4)
    assert "train.py:12" in verdict.summary
    assert verdict.confidence <= (GUESS_CONFIDENCE if cls == "eval" else 1.0)


def test_a_close_rival_and_an_uncertain_share_lower_the_confidence() -> None:
    sure = judged({"checkpoint": 0.6, "backward": 0.4}).confidence
    rivalled = judged({"checkpoint": 0.35, "logging": 0.3, "backward": 0.35})
    unsteady = judged({"checkpoint": 0.6, "backward": 0.4}, error=0.2).confidence
    assert sure > rivalled.confidence and sure > unsteady
    assert rivalled.runner_up == "logging"


@pytest.mark.parametrize(
    ("shares", "more", "says"),
    [
        (COMPUTES, {}, "work or the cost of many small calls"),
        (COMPUTES, {"other_threads_cores": 2.0, "own_lines_frac": 0.4}, "lines of your own"),
        ({"other": 0.5, "backward": 0.5}, {}, "no phase that samples show"),
        ({"imports": 0.7, "backward": 0.3}, {}, "is starting"),
        ({"other": 1.0}, {}, "no training was seen"),
        (waiting(0.8), {"samples": 60}, "only 60 samples"),
        (waiting(0.8), {"device": True}, "not known"),
        ({}, {"samples": 0}, "tdiag attach sees no steps"),
    ],
)
def test_no_verdict_where_samples_cannot_tell(
    shares: dict[str, float], more: dict[str, object], says: str
) -> None:
    verdict = judged(shares, **more)
    assert (verdict.cls, verdict.confidence) == ("unknown", 0.0)
    assert says in verdict.summary


def test_computing_is_a_guess_where_several_threads_compute() -> None:
    verdict = judged(COMPUTES, other_threads_cores=3.0)
    assert verdict.cls == "compute" and not verdict.healthy
    assert verdict.confidence <= GUESS_CONFIDENCE


def test_on_a_device_nothing_costs_more_than_the_device_idles() -> None:
    busy = judged(waiting(0.8), device=True, device_used_frac=0.95)
    idle = judged(waiting(0.8), device=True, device_used_frac=0.3)
    launching = judged(COMPUTES, device=True, device_used_frac=0.3)
    assert busy.cls == "compute"
    assert (idle.cls, idle.share) == ("input", 0.7)
    assert launching.cls == "unknown" and "idles in 70%" in launching.summary


def test_nothing_is_predicted_and_every_rule_abstains() -> None:
    found = diagnosed(waiting(0.8), fetching=fetching(2, 0.97, 0.94))
    assert found.step is None and not found.budget and not found.findings
    about_ranks = ("TD902", "TD904")  # they say so of one rank, whatever else is missing
    reasons = {rule.missing for rule in found.abstained if rule.code not in about_ranks}
    assert reasons == {"tdiag attach sees no steps"}


def test_of_ranks_the_one_that_the_others_wait_for_is_named() -> None:
    def rank(number: int, meets: float) -> WatchedRank:
        found = Activity(name="backward", frac=meets, error_frac=0.0)
        return WatchedRank(
            pid=number + 1, rank=number, samples=500, cpu_frac=1.0, activities=(found,)
        )

    late = judged(waiting(0.8), ranks=(rank(0, 0.2), rank(1, 0.9)))
    alike = judged(waiting(0.8), ranks=(rank(0, 0.2), rank(1, 0.3)))
    assert late.summary.startswith("The other ranks wait for rank 0: 90% of their time")
    assert (late.cls, alike.cls) == ("input", "input")
    assert "wait for rank" not in alike.summary
