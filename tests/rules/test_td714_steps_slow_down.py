"""The line whose work grows with the step number."""

from __future__ import annotations

from tdiag.diagnose.engine import run_rule, run_rules
from tdiag.evidence.memory import GrowingGraph, MemoryGrowth
from tdiag.evidence.sampled import CallTrees, LateStacks, Stacks
from tdiag.evidence.steps import Budget, PhaseGrowth, SlowingDown
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import at, budget, op_line, ops, stack, stacks, system


def grown(phase: str, lines: Stacks | None = None, graph: int = 0) -> Finding | None:
    """2,000 steps, each 10 µs longer, of 30 ms now; the loop's step is in lines 57 to 59."""
    growth = PhaseGrowth(phase=phase, slope_ns=10_000, least_ns=9_000, most_ns=11_000)
    evidence = Evidence().add(
        budget(prepare=10, forward=5, backward=10, optimizer=2, other=3),
        SlowingDown(phases=(growth,), first_step=0, last_step=2000, clean_step=2000),
        ops(
            op_line(57, "forward", 4, at=at(57, "train")),
            op_line(59, "optimizer", 4, at=at(59, "train")),
        ),
    )
    if lines is not None:
        evidence.add(lines)
    if graph:
        graphs = (GrowingGraph(at=at(graph), nodes=4.0),)
        evidence.add(MemoryGrowth(kept=(), bytes_per_step=0.0, since_steps=9, graphs=graphs))
    result = run_rule(find("TD714"), evidence)
    return result if isinstance(result, Finding) else None


def line_of(finding: Finding | None) -> int | None:
    return finding.location.line if finding and finding.location else None


def test_without_a_loader_the_growing_line_stands_below_the_step_or_above_the_forward() -> None:
    for line in (62, 50):
        lines = stacks((stack(line, 0.4, function="train"), stack(57, 0.4, "", "forward")))
        assert line_of(grown("prepare", lines)) == line


def test_a_growing_backward_is_the_line_whose_graph_grows() -> None:
    lines = stacks((stack(58, 0.4, "", "backward", "train"),))
    assert line_of(grown("backward", lines, graph=56)) == 56
    assert grown("backward", lines) is None  # its only line has all samples, whatever slows it


def test_growth_of_no_single_line_is_not_reported() -> None:
    even = stacks((stack(62, 0.2, function="train"), stack(63, 0.2, function="train")))
    assert grown("after_step", even) is None
    assert grown("after_step") is None


def test_beside_busy_programs_nothing_is_said() -> None:
    rule = find("TD714")
    for crowd in (
        system(training_queued_frac=0.2, machine_busy_cores=2.0),
        system(cores_machine=2, cores_used=1.0, machine_busy_cores=2.0),
    ):
        assert not isinstance(run_rule(rule, rule.fires().add(crowd)), Finding)
    assert isinstance(run_rule(rule, rule.fires().add(system())), Finding)


def test_it_says_the_slope_its_interval_and_what_it_comes_to() -> None:
    lines = stacks((stack(62, 0.4, function="train"),))
    finding = grown("after_step", lines)
    assert finding is not None
    assert finding.summary == (
        "Each step takes 10.0 µs longer than the previous one (9.00 µs to 11.0 µs), most likely at"
        " train.py:62: 100 ms more after 10,000 steps."
    )


def test_work_that_grows_comes_before_work_done_less_often() -> None:
    findings, _ = run_rules(find("TD714").fires(), [find("TD713"), find("TD714")])
    fixes = {finding.code: finding.fix.text for finding in findings}
    assert "First TD714 steps-slow-down" in fixes["TD713"]


def grown_late(grown_frac: float | None, slope: float = 100, **about: float) -> Finding | Abstained:
    """40,000 steps of 20 ms, each 0.1 µs longer; most of the time after the step is at line 62."""
    growth = PhaseGrowth(phase="after_step", slope_ns=slope, least_ns=slope, most_ns=slope,
                         grown_frac=grown_frac)  # fmt: skip
    slowing = SlowingDown(phases=(growth,), first_step=2000, last_step=40_000, clean_step=400,
                          late=True, **about)  # type: ignore[arg-type]  # fmt: skip
    result = run_rule(find("TD714"), find("TD714").fires().add(slowing))
    assert result is not None
    return result


def test_late_steps_name_the_phase_where_the_line_was_not_seen_growing() -> None:
    for grown_frac in (None, 0.1):
        finding = grown_late(grown_frac, memory_bytes=3_000)
        assert isinstance(finding, Finding)
        assert finding.location is None and finding.advisory
        assert finding.summary == (
            "Each step takes 100 ns longer than the previous one (100 ns to 100 ns), in what"
            " follows the optimizer's step at train.py:59: step 40,000 took 3.80 ms more than step"
            " 2,000. The process's memory grows by 2.93 KiB a step."
        )
        assert "`tdiag attach PID` samples the steps once they are slow" in finding.fix.text


def test_late_steps_name_the_line_that_was_seen_growing() -> None:
    finding = grown_late(0.8, slope=5_000)
    assert isinstance(finding, Finding)
    assert line_of(finding) == 62 and not finding.advisory
    assert finding.at_best_ns == 5_000 * 400  # of the clean steps, that the budget is of


def test_the_line_of_late_samples_is_named_if_growth_was_most_of_its_phase() -> None:
    """Early on, line 62 held most samples of the phase; hours later it is line 63, which grew."""
    later = (stack(62, 0.1, function="train"), stack(63, 0.7, function="train"))
    late = LateStacks(stacks=stacks(later), trees=CallTrees(training=(), workers=()))
    for late_frac, line in ((0.9, 63), (0.2, None)):
        growth = PhaseGrowth(phase="after_step", slope_ns=100, least_ns=100, most_ns=100,
                             grown_frac=0.1, late_frac=late_frac)  # fmt: skip
        slowing = SlowingDown(phases=(growth,), first_step=2000, last_step=40_000,
                              clean_step=400, late=True)  # fmt: skip
        result = run_rule(find("TD714"), find("TD714").fires().add(slowing, late))
        assert isinstance(result, Finding) and line_of(result) == line


def test_of_late_steps_on_a_device_nothing_is_said() -> None:
    rule = find("TD714")
    growth = PhaseGrowth(phase="after_step", slope_ns=1e4, least_ns=1e4, most_ns=1e4)
    slowing = SlowingDown(phases=(growth,), first_step=2000, last_step=40_000, clean_step=400,
                          late=True)  # fmt: skip
    traced = Budget(step_ns=20_000_000, components_ns={"compute": 20_000_000}, has_device=True)
    result = run_rule(rule, rule.fires().add(slowing, traced))
    assert isinstance(result, Abstained) and "attach PID" in result.missing
