"""From evidence to a diagnosis that hangs together, and never an exception."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.device import DevicePart, DeviceParts, DeviceTime
from tdiag.evidence.steps import Steps, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import HostOp, HostOps
from tdiag.model import diagnosis as model
from tdiag.model.diagnosis import Diagnosis, Verdict
from tdiag.model.place import Place
from tdiag.rules.catalogue import Rule, all_rules, find
from tdiag.rules.examples import MS, device_time, phases, system


def sums(diagnosis: Diagnosis) -> bool:
    whole = diagnosis.step.mean_ns if diagnosis.step else 0
    return sum(part.ns for part in diagnosis.budget) == whole


def test_nothing_at_all_is_an_unknown_verdict_with_every_rule_abstaining() -> None:
    found = diagnose(Evidence())
    assert found.verdict.cls == "unknown"
    assert (found.step, found.budget, found.findings) == (None, (), ())
    assert {a.code for a in found.abstained} == {rule.code for rule in all_rules()}


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
@pytest.mark.parametrize("example", ["fires", "clear"])
def test_whatever_part_of_the_evidence_is_there_a_diagnosis_comes_out(
    rule: Rule, example: str
) -> None:
    """Each rule's examples, complete and with each single kind taken away."""
    whole = getattr(rule, example)()
    for left_out in (None, *whole.facts):
        facts = {kind: fact for kind, fact in whole.facts.items() if kind is not left_out}
        found = diagnose(Evidence(facts=facts))
        assert 0 <= found.verdict.confidence <= 1
        assert 0 <= found.verdict.share <= 1
        assert not (found.verdict.healthy and found.verdict.cls != "compute")


def test_the_budget_of_a_run_sums_to_its_step() -> None:
    clean = Steps(
        durations_ns=(3, 3, 4), mean_ns=3, median_ns=3, p90_ns=4, count=3, boundary="optimizer",
        total_steps_seen=3,
    )  # fmt: skip
    wall = phases(forward=2 / MS, backward=4 / 3 / MS)
    assert sums(diagnose(Evidence().add(clean, wall)))


def test_a_bare_trace_is_diagnosed_like_a_run() -> None:
    traced = TracedSteps(
        durations_ns=(90 * MS, 110 * MS), mean_ns=100 * MS, count=2, found_by="ProfilerStep"
    )
    found = diagnose(Evidence().add(traced, device_time(100, busy_frac=0.3)))
    assert found.step is not None
    assert found.step.mean_ns == 100 * MS
    assert sums(found)


def test_a_crowded_machine_is_noted() -> None:
    crowded = system(cores_machine=4, machine_busy_cores=4.0, cores_used=1.0)
    (note,) = diagnose(Evidence(notes=[]).add(crowded)).notes
    assert note.text.startswith("other programs kept 75% of the machine's cores busy")


def test_verdict_and_findings_agree_on_every_rules_own_example() -> None:
    """Healthy is never said beside a finding that wins something; what it wins is no finding."""
    for rule in all_rules():
        found = diagnose(rule.fires())
        if found.verdict.healthy and found.step:
            assert all(f.advisory for f in found.findings)
            assert all(f.recoverable_ns < 0.05 * found.step.mean_ns for f in found.findings)


def test_what_a_healthy_run_could_still_win_is_worth_knowing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    healthy = Verdict(
        cls="compute", share=0.97, confidence=0.9, runner_up=None, summary="", healthy=True
    )
    monkeypatch.setattr("tdiag.diagnose.judge", lambda *_: healthy)
    found = diagnose(find("TD201").fires())
    (waiting,) = [f for f in found.findings if f.code == "TD201"]
    assert waiting.advisory and waiting.speedup is not None


def test_evidence_keeps_the_budget_for_the_reports(tmp_path: Path) -> None:
    evidence = Evidence().add(device_time(100, busy_frac=0.3))
    diagnose(evidence)
    assert DeviceTime in evidence.facts
    assert "Budget" in {kind.__name__ for kind in evidence.facts}


def test_the_largest_parts_of_the_trace_are_told_and_what_shares_are_of() -> None:
    kernels = tuple(DevicePart(name=f"k{i}", count=2, device_ns=100.0 - i) for i in range(12))
    ops = tuple(HostOp(name=f"o{i}", count=1, self_ns=30.0 - i, total_ns=50) for i in range(2))
    at = Place(file="loss.py", line=3, function="loss")
    function = DevicePart(name="loss (loss.py)", count=3, device_ns=9, at=at)
    found = diagnose(
        Evidence().add(
            DeviceParts(kernels=kernels, ops=kernels[:1], modules=(), functions=(function,)),
            HostOps(per_step=2, total_per_step=2, ops=ops, backward_of={}),
        )
    ).top
    assert [(top.of, len(top.parts)) for top in found] == [
        ("kernels", 10),
        ("ops", 1),
        ("functions", 1),
        ("host_ops", 2),
    ]
    every = sum(part.device_ns for part in kernels)
    assert [top.total_ns for top in found] == [every, every, every, 59]
    assert found[0].parts[0] == model.Part("k0", 2, 100)
    assert found[2].parts[0] == model.Part("loss", 3, 9, at)


def test_no_part_of_the_trace_is_longer_than_the_clean_step() -> None:
    """torch.profiler made the step 6.6 times as long: the op's share holds, its time does not."""
    ops = tuple(
        HostOp(name=f"o{i}", count=1, self_ns=ns, total_ns=ns)
        for i, ns in enumerate((412.0, 103.0))
    )
    listed = HostOps(per_step=2, total_per_step=2, ops=ops, backward_of={})
    clean = Steps(
        durations_ns=(94,) * 20, mean_ns=94, median_ns=94, p90_ns=94, count=20,
        boundary="optimizer", total_steps_seen=40,
    )  # fmt: skip
    slowed = TracedSteps(durations_ns=(623,) * 3, mean_ns=623, count=3, found_by="optimizer")
    (top,) = diagnose(Evidence().add(listed, clean, slowed)).top
    assert top.scaled and top.total_ns < 94
    assert [part.ns for part in top.parts] == pytest.approx([412 * 94 / 623, 103 * 94 / 623])
    assert [part.ns / top.total_ns for part in top.parts] == pytest.approx([0.8, 0.2])
    (bare,) = diagnose(Evidence().add(listed, slowed)).top
    assert not bare.scaled and bare.parts[0].ns == 412
