"""What trials change of a diagnosis: gains that were measured, and a verdict that follows them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.proven import ceilings_of, proven
from tdiag.model.diagnosis import Diagnosis, Speedup, Verdict
from tdiag.model.trials import Answer, Trials, Tried
from tests.report.building import MS, diagnosis, finding

STEP = {"data_wait_cpu": 60.0, "forward": 20.0, "backward": 20.0}
INPUT = Verdict(cls="cpu", share=0.6, confidence=0.6, runner_up="eval", summary="waits for data")


def found(code: str, cls: str, win_ms: float, change: str | None, gain: bool = True):  # type: ignore[no-untyped-def]
    return finding(
        code, code.lower(), cls, "", None, (), "Do it", win_ms=win_ms,
        speedup=(1.2, 1.5) if gain else None, intervention=change,
    )  # fmt: skip


def run(verdict: Verdict = INPUT, **changes: object) -> Diagnosis:
    findings = (
        found("TD201", "cpu", 50, "loader.num_workers=4"),
        found("TD704", "overhead", 10, "torch.anomaly=off"),
        found("TD703", "overhead", 0, "optimizer.zero_grad=set_to_none", gain=False),
    )
    return diagnosis(verdict, STEP, **{"findings": findings, **changes})


def tried(change: str, answer: Answer, saved: tuple[float, float, float] | None = None) -> Tried:
    """``saved``: the share of the step, its low and its high end."""
    ratios = dict(zip(("speedup", "low", "high"), (1 / (1 - s) for s in saved or ()), strict=False))
    return Tried(change=change, ceiling=change.startswith("ceiling"), safety="", answer=answer,
                 groups=3, **ratios)  # type: ignore[arg-type]  # fmt: skip


def after(*trials: Tried, of: Diagnosis | None = None) -> Diagnosis:
    return proven(of or run(), Trials(command="python train.py", tried=trials))


NOTHING = (0.0, -0.01, 0.01)


def test_a_measured_gain_takes_the_place_of_the_predicted_one_in_the_ranking() -> None:
    known = after(
        tried("loader.num_workers=4", "no effect", NOTHING),
        tried("torch.anomaly=off", "faster", (0.3, 0.25, 0.35)),
    )
    first, second, _ = known.findings
    assert (first.code, first.recoverable_ns) == ("TD704", 30 * MS)
    assert first.measured and first.measured.answer == "faster"
    assert first.speedup and first.speedup.high == 1.5  # what was predicted stays
    assert (second.code, second.recoverable_ns) == ("TD201", 0)


def test_a_measured_gain_counts_in_what_all_fixes_win_together() -> None:
    waits = tuple(replace(f, components=("data_wait_cpu",)) for f in run().findings)
    known = after(tried("loader.num_workers=4", "no effect", NOTHING), of=run(findings=waits))
    assert known.together == Speedup(1.2, 1.5), "of TD704 alone"


@pytest.mark.parametrize("answer", ["unclear", "not applied", "failed"])
def test_what_was_not_measured_clearly_changes_nothing(answer: Answer) -> None:
    trials = (tried("loader.num_workers=4", answer), tried("ceiling.data", answer))
    known = after(*trials)
    assert known.findings == run().findings and known.verdict == INPUT
    assert known.trials is not None and known.trials.tried == trials


def test_several_changes_together_are_matched_however_they_are_written() -> None:
    both = replace(run().findings[0].fix, intervention="loader.cache+loader.num_workers=0")
    of = run(findings=(replace(run().findings[0], fix=both),))
    known = after(tried("loader.cache + loader.num_workers=0", "faster", (0.5, 0.4, 0.6)), of=of)
    assert known.findings[0].recoverable_ns == 50 * MS


def test_a_ceiling_or_a_fix_of_its_class_proves_the_verdict() -> None:
    for one in ("ceiling.data", "loader.num_workers=4"):
        verdict = after(tried(one, "faster", (0.55, 0.5, 0.6))).verdict
        assert (verdict.cls, verdict.proven, verdict.confidence) == ("cpu", True, 0.95)
        assert "saves 55% [50%, 60%] of the step" in verdict.summary
    small = after(tried("ceiling.data", "faster", (0.2, 0.15, 0.25))).verdict
    assert (small.cls, small.proven) == ("cpu", False)
    assert "saves 20% [15%, 25%] of the step, less than the budget says" in small.summary
    other = after(tried("torch.anomaly=off", "faster", (0.55, 0.5, 0.6))).verdict
    assert not other.proven


def test_a_loss_that_was_named_to_be_left_out_proves_the_verdict() -> None:
    loss = run(replace(INPUT, cls="python_loss"))
    one = tried("ceiling.loss=train.py:pairs", "faster", (0.55, 0.5, 0.6))
    verdict = after(one, of=loss).verdict
    assert verdict.proven and "leaving out the loss saves 55% [50%, 60%]" in verdict.summary


def test_a_ceiling_without_effect_takes_the_verdict_back() -> None:
    verdict = after(tried("ceiling.data", "no effect", NOTHING)).verdict
    assert (verdict.cls, verdict.runner_up, verdict.proven) == ("unknown", "cpu", False)
    assert "leaving out loading data has no effect, measured" in verdict.summary


def test_it_is_taken_back_only_by_a_ceiling_that_leaves_out_all_of_it() -> None:
    """A loop still makes its own batches, and a `.cpu()` is still waited for."""
    by_hand = replace(run(), budget=diagnosis(INPUT, {"prepare": 60.0, "forward": 40.0}).budget)
    assert after(tried("ceiling.data", "no effect", NOTHING), of=by_hand).verdict.cls == "cpu"
    reads = run(replace(INPUT, cls="sync"))
    assert after(tried("ceiling.reads", "no effect", NOTHING), of=reads).verdict.cls == "sync"


@pytest.mark.parametrize(
    ("cls", "share", "mine", "saved", "named"),
    [
        ("cpu", 0.6, (0.2, 0.15, 0.25), (0.5, 0.4, 0.6), "eval"),
        ("cpu", 0.6, (0.5, 0.45, 0.55), (0.5, 0.4, 0.6), "cpu"),  # intervals overlap
        ("cpu", 0.6, None, (0.5, 0.4, 0.6), "cpu"),  # less than the budget says
        ("cpu", 0.3, None, (0.5, 0.4, 0.6), "eval"),
        ("compute", 0.7, None, (0.3, 0.25, 0.35), "eval"),  # a fifth outweighs computing
        ("compute", 0.7, None, (0.2, 0.1, 0.3), "compute"),
        ("unknown", 0.4, None, (0.3, 0.25, 0.35), "unknown"),  # the rest may be anything
        ("unknown", 0.4, None, (0.6, 0.55, 0.65), "eval"),
    ],
)
def test_the_class_follows_another_part_that_surely_costs_more(
    cls: str, share: float, mine: tuple[float, float, float] | None,
    saved: tuple[float, float, float], named: str,
) -> None:  # fmt: skip
    trials = [tried("ceiling.evaluation", "faster", saved)]
    if mine:
        trials.append(tried("ceiling.data", "faster", mine))
    verdict = after(*trials, of=run(replace(INPUT, cls=cls, share=share))).verdict
    assert verdict.cls == named
    if named == "eval":
        assert verdict.proven and verdict.share == pytest.approx(saved[0], abs=1e-6)
        assert verdict.summary.startswith("Measured: leaving out evaluation saves")


def test_a_healthy_run_whose_fix_wins_is_not_healthy() -> None:
    healthy = Verdict(cls="compute", share=0.9, confidence=0.9, runner_up=None, healthy=True,
                      summary="90% of the step is computing: healthy")  # fmt: skip
    of = run(healthy, findings=tuple(replace(f, advisory=True) for f in run().findings))
    known = after(tried("torch.anomaly=off", "faster", (0.2, 0.1, 0.3)), of=of)
    assert not known.verdict.healthy and "healthy" not in known.verdict.summary
    assert known.findings[0].code == "TD704" and not known.findings[0].advisory
    small = after(tried("torch.anomaly=off", "faster", (0.04, 0.035, 0.045)), of=of)
    assert small.verdict.healthy and all(f.advisory for f in small.findings)


def test_the_ceilings_that_are_worth_measuring_are_those_of_the_verdict() -> None:
    assert ceilings_of(INPUT) == ["ceiling.data", "ceiling.evaluation"]
    assert ceilings_of(replace(INPUT, cls="sync", runner_up="io")) == [
        "ceiling.reads",
        "ceiling.data",
    ]
    assert ceilings_of(replace(INPUT, cls="compute", runner_up=None)) == []
