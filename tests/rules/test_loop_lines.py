"""What runs beside the step: found by its place in the loop, in whatever function it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose import diagnose
from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.steps import Phases, Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, Ops
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, environment, op_line, ops, stack, stacks
from tdiag.rules.log_lines import writes
from tdiag.rules.loop_lines import AFTER, BEFORE, beside_the_step

FILE = "/home/me/train.py"


def tree(*frames: tuple[str, int, int, float]) -> CallTrees:
    """Name, line, the caller's number, share."""
    return CallTrees(
        training=tuple(
            CallFrame(name=name, file=FILE, line=line, parent=parent, frac=share, user=True)
            for name, line, parent, share in frames
        ),
        workers=(),
    )


def in_loop() -> Ops:
    """One function: forward at 50, the update at 53."""
    return ops(
        op_line(50, "forward", 9, at=at(50, "main")), op_line(53, "optimizer", 9, at=at(53, "main"))
    )


def test_the_source_order_of_one_loop() -> None:
    mine = [stack(line, 0.2, function="main") for line in (48, 51, 55)]
    lines = stacks((*mine, stack(56, 0.2, "", "data_wait", "main")))
    assert [x.at.line for x in beside_the_step(BEFORE, lines, in_loop(), None)] == [48]
    assert [x.at.line for x in beside_the_step(AFTER, lines, in_loop(), None)] == [55]


def test_a_line_of_a_call_that_writes_writes(tmp_path: Path) -> None:
    script = tmp_path / "audit.py"
    script.write_text(
        "def record(self, gold):\n    self.log.info(\n        'gold=%d',\n"
        "        gold.item(),\n    )\n    if self.log.isEnabledFor(10):\n        check(gold)\n"
    )
    found = [writes(replace(stack(0, 0.1), at=at(n, "record", str(script)))) for n in range(2, 8)]
    assert found == [True, True, True, True, False, False]


def test_an_evaluation_below_the_step_runs_after_it() -> None:
    """``main``: forward at 50, the update at 53, a metric at 55; 58 calls the model once more."""
    calls = (*in_loop().lines, op_line(19, "forward", 9, at=at(19, "forward")))
    stacked = tree(("main", 50, -1, 0.5), ("forward", 19, 0, 0.5), ("main", 58, -1, 0.1),
                   ("forward", 19, 2, 0.1))  # fmt: skip
    lines = stacks((stack(55, 0.2, function="main"),))
    assert [x.at.line for x in beside_the_step(AFTER, lines, ops(*calls), stacked)] == [55]


@pytest.mark.parametrize("phase", ["forward", "prepare"])
@pytest.mark.parametrize(("acts", "drawn"), [(True, [44, 30]), (False, [])])
def test_an_agent_acts_before_its_batch_is_drawn(acts: bool, drawn: list[int], phase: str) -> None:
    """``main``: 40 acts, 44 draws the batch (line 30), 46 learns and moves the batch before that.
    Both forwards run line 19."""
    calls = replace(
        ops(
            op_line(40, phase, 3, at=at(40, "main")),
            op_line(46, "prepare", 3, at=at(46, "main")),
            op_line(19, "forward", 9, at=at(19, "forward"), grad_calls=4.0),
            op_line(53, "optimizer", 9, at=at(53, "learn")),
        ),
        acts=acts,
    )
    stacked = tree(
        ("main", 40, -1, 0.1), ("forward", 19, 0, 0.1),
        ("main", 44, -1, 0.4), ("draw", 30, 2, 0.3),
        ("main", 46, -1, 0.5), ("learn", 50, 4, 0.2), ("forward", 19, 5, 0.2),
        ("learn", 53, 4, 0.3),
    )  # fmt: skip
    lines = stacks((stack(44, 0.1, function="main"), stack(30, 0.3, function="draw")))
    assert [x.at.line for x in beside_the_step(BEFORE, lines, calls, stacked)] == drawn


@pytest.mark.parametrize(
    ("prepare", "other", "named"),
    [
        (0.2, 12, True),  # the loader is made again in each epoch: no time before the forward
        (12, 0.2, False),  # a batch made by hand, before each forward
        (0.2, 2, False),  # the time after the step holds little of it: an evaluation, perhaps
    ],
)
def test_what_an_epoch_makes_again_runs_after_the_step_and_stands_above_it(
    prepare: float, other: float, named: bool
) -> None:
    """`for epoch …: loader = make()`, and below it the loop over batches."""
    lines = stacks((stack(14, 0.6, function="Table.__init__"),))
    trees = tree(("main", 28, -1, 0.6), ("Table.__init__", 14, 0, 0.6))
    rest = max(0.0, 20 - prepare - other)
    step = budget(prepare=prepare, other=other, data_wait=1, forward=rest)
    found = run_rule(find("TD713"), Evidence().add(step, lines, in_loop(), trees))
    assert isinstance(found, Finding) is named
    if isinstance(found, Finding):
        assert found.location is not None and found.location.line == 14
        assert "once, before the first" in found.fix.text
        assert found.speedup is not None and found.speedup.high > 2


def test_a_step_in_a_function_of_its_own_and_work_in_another() -> None:
    """``main`` calls ``batch`` at 80, ``step`` at 81 and ``watch`` at 82."""
    step = ops(
        op_line(50, "forward", 9, at=at(50, "step")), op_line(53, "optimizer", 9, at=at(53, "step"))
    )
    trees = tree(
        ("main", 81, -1, 0.2),
        ("step", 50, 0, 0.1),
        ("step", 53, 0, 0.1),
        ("main", 80, -1, 0.3),
        ("Maker.batch", 20, 3, 0.3),
        ("main", 82, -1, 0.5),
        ("watch", 30, 5, 0.5),
    )
    lines = stacks(
        (
            stack(30, 0.5, function="watch"),
            stack(20, 0.3, function="Maker.batch"),
            stack(50, 0.1, function="step"),
        )
    )
    assert [x.at.line for x in beside_the_step(AFTER, lines, step, trees)] == [30]
    assert [x.at.line for x in beside_the_step(BEFORE, lines, step, trees)] == [20]


def test_torch_calls_place_a_line_of_a_frameworks_loop() -> None:
    calls = ops(
        op_line(50, "forward", 9, at=at(50, "training_step")),
        op_line(70, "after_step", 3, at=at(70, "on_train_batch_end")),
    )
    lines = stacks((stack(70, 0.6, function="on_train_batch_end"), stack(90, 0.4, function="x")))
    assert [x.at.line for x in beside_the_step(AFTER, lines, calls, None)] == [70]


def test_the_line_that_starts_a_frameworks_loop_does_not_hide_what_its_callbacks_do() -> None:
    """``main`` calls ``trainer.fit`` at 90, and that all the rest."""
    calls = ops(
        op_line(90, "forward", 9, at=at(90, "main")),
        op_line(90, "optimizer", 9, at=at(90, "main")),
        op_line(70, "after_step", 3, at=at(70, "on_train_batch_end")),
    )
    trees = tree(("main", 90, -1, 1.0), ("Stats.on_train_batch_end", 70, 0, 0.6))
    lines = stacks((stack(70, 0.6, function="Stats.on_train_batch_end"),))
    assert [x.at.line for x in beside_the_step(AFTER, lines, calls, trees)] == [70]


def judged(line: int) -> tuple[str, dict[str, int], list[tuple[str, int | None]]]:
    """A loop without a loader, 80 % of the time at one line: class, budget and first places."""
    step = 20 * MS
    wall = {"prepare": 16.0 * MS, "forward": 1.0 * MS, "backward": 2.0 * MS, "optimizer": 1.0 * MS}
    work = stack(line, 0.8, "histogram (lib/_histograms.py)", function="main")
    evidence = Evidence().add(
        Steps(
            durations_ns=(step,) * 50,
            mean_ns=step,
            median_ns=step,
            p90_ns=step,
            count=50,
            boundary="optimizer",
            total_steps_seen=90,
        ),
        Phases(wall_ns=wall, cpu_ns={"prepare": 4.0 * MS}, counts=dict.fromkeys(wall, 1.0)),
        stacks((work, stack(50, 0.1, "", "", "main"))),
        in_loop(),
        Dispatch(op_ns=1500, grad_op_ns=7000),
        environment(),
    )
    found = diagnose(evidence)
    first = [(f.code, f.location.line if f.location else None) for f in found.findings[:1]]
    return found.verdict.cls, {x.component: x.ns for x in found.budget}, first


def test_a_verdict_on_time_after_the_step_follows_its_lines() -> None:
    """Without a loader such time was in ``prepare``, and the verdict unknown."""
    cls, budget, first = judged(60)
    assert cls == "overhead"
    assert budget["other"] == 16 * MS
    assert first == [("TD713", 60)]


@pytest.mark.parametrize(("writing", "merged"), [(0.6, True), (0.1, False)])
def test_what_is_made_to_be_logged_goes_with_the_log(
    writing: float, merged: bool, tmp_path: Path
) -> None:
    """One remedy, one finding: unless the function has more to do than to write."""
    script = tmp_path / "notes.py"
    script.write_text("state = packed(model)\nfile.write(state)\nkeep(state)\n")
    lines = tuple(
        replace(stack(line, share, phase="after_step"), at=at(line, "note", str(script)))
        for line, share in ((1, 0.2), (2, writing))
    )
    evidence = Evidence().add(budget(forward=10, other=40), stacks(lines), in_loop())
    wrote, worked = (run_rule(find(code), evidence) for code in ("TD804", "TD713"))
    assert isinstance(wrote, Finding)
    assert isinstance(worked, Finding) is not merged
    share = writing + 0.2 * merged
    assert wrote.at_best_ns / (50 * MS) == pytest.approx(share, abs=0.05)


def test_work_above_the_forward_makes_the_batch() -> None:
    cls, budget, first = judged(40)
    assert cls != "overhead"
    assert budget["prepare"] == 16 * MS
    assert ("TD713", 40) not in first
