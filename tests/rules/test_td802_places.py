"""Where an evaluation's time goes."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.from_run.loader_fetches import _in_a_row
from tdiag.evidence.from_run.records import IteratorRecord
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.steps import Phases
from tdiag.evidence.training import Modules
from tdiag.model.diagnosis import Finding
from tdiag.rules.callers import caller_of
from tdiag.rules.catalogue import find
from tdiag.rules.evaluation import line_in_framework
from tdiag.rules.examples import at, environment, loaders, module, op_line, ops, stack, stacks

FILE = at(1).file
LOOP = "/opt/lib/site-packages/lightning/pytorch/loops/evaluation_loop.py"


def frames(*made: tuple[str, str, int, int, float]) -> CallTrees:
    """File ("" for the user's), name, line, the caller's number, share."""
    return CallTrees(
        training=tuple(
            CallFrame(
                name=name,
                file=file or FILE,
                line=line,
                parent=parent,
                frac=share,
                user=not file,
                evaluates=file == LOOP,
                collects=name == "EvalLoopContainer.add",
            )
            for file, name, line, parent, share in made
        ),
        workers=(),
    )


FRAMEWORK = frames(
    ("", "main", 120, -1, 1.0),
    (LOOP, "_EvaluationLoop.run", 0, 0, 0.6),
    ("", "validation_step", 78, 1, 0.1),
    ("", "validation_step", 80, 1, 0.45),
    ("", "ItemTower.forward", 60, 3, 0.45),
    ("/opt/lib/site-packages/torch/nn/modules/linear.py", "forward", 0, 4, 0.4),
)
SWEEP = frames(
    ("", "main", 99, -1, 1.0),
    ("", "best_threshold", 48, 0, 0.7),
    ("", "dice_at", 35, 1, 0.1),
    ("", "dice_at", 36, 1, 0.6),
    ("", "dice_at", 90, 0, 0.05),
)


def judged(trees: CallTrees, **loader: object) -> Finding:
    found = run_rule(
        find("TD802"), find("TD802").fires().add(loaders(role="eval", **loader), trees)
    )
    assert isinstance(found, Finding) and found.location is not None
    return found


def test_a_frameworks_evaluation_is_placed_in_the_users_function() -> None:
    place = line_in_framework(FRAMEWORK)
    assert place is not None and place.line == 80
    assert line_in_framework(SWEEP) is None
    fit = op_line(120, "optimizer", 9, at=at(120, "main"))
    evidence = (
        find("TD802")
        .fires()
        .add(loaders(role="eval", iterated_at=at(120, "main")), FRAMEWORK, ops(fit))
    )
    found = run_rule(find("TD802"), evidence)
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == 80


def test_a_further_pass_in_a_frameworks_hook_is_the_place_if_it_takes_more() -> None:
    """``update_bn(loader, averaged)`` at the end of each epoch, beside a short validation."""
    more = frames(
        ("", "main", 120, -1, 1.0),
        (LOOP, "_EvaluationLoop.run", 0, 0, 0.02),
        ("", "validation_step", 80, 1, 0.02),
        ("", "on_train_epoch_end", 64, 0, 0.3),
    )
    fit = op_line(120, "optimizer", 9, at=at(120, "main"))
    evaluated = (
        module("Net", evaluated_at=at(80, "validation_step")),
        module("Net", evaluated_at=at(64, "on_train_epoch_end")),
    )
    evidence = find("TD802").fires().add(
        loaders(role="eval", iterated_at=at(120, "main")), more, ops(fit),
        Modules(modules=evaluated),
    )  # fmt: skip
    found = run_rule(find("TD802"), evidence)
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == 64


@pytest.mark.parametrize(("in_a_row", "line"), [(19, 48), (3, 48), (2, 35), (1, 35)])
def test_the_line_that_reads_the_same_data_again(in_a_row: int, line: int) -> None:
    caller = caller_of(at(35, "dice_at"), SWEEP)
    assert caller is not None and caller.line == 48
    found = judged(SWEEP, iterated_at=at(35, "dice_at"), in_a_row=in_a_row)
    assert found.location is not None and found.location.line == line
    assert (f"{in_a_row} times in a row" in found.summary) is (line == 48)


def test_passes_between_two_steps() -> None:
    ends = np.array([100, 200, 300])
    made = [IteratorRecord(t=t, loader=1) for t in (10, 20, 30, 40, 150, 160, 170, 210, 400, 401)]
    assert _in_a_row(made, ends) == 3  # not the four before training, nor those after it
    assert _in_a_row([], ends) == _in_a_row(made, ends[:0]) == 1


def test_samples_that_saw_less_of_the_evaluation_than_the_clean_steps() -> None:
    """Its share in the samples is that of its function, not that of the clean steps."""
    trees = frames(
        ("", "main", 99, -1, 1.0),
        ("", "Ranking.__call__", 47, 0, 0.01),
        ("", "Ranking.__call__", 50, 0, 0.2),
        ("", "Ranking.other_answers", 39, 2, 0.195),
    )
    evidence = find("TD802").fires().add(  # an evaluation takes half of the clean steps
        trees, Modules(modules=(module("Net", evaluated_at=at(47, "__call__")),)),
        stacks((replace(stack(39, 0.195), at=at(39, "Ranking.other_answers")),)),
    )  # fmt: skip
    found = run_rule(find("TD802"), evidence)
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == 39
    assert "93% of it is not the model" in found.summary


def test_ranks_that_may_all_evaluate_everything() -> None:
    """To share it out among two saves less than to evaluate more rarely."""
    low = []
    for ranks in (1, 2, 8):
        evidence = find("TD802").fires().add(environment(world_size=ranks))
        found = run_rule(find("TD802"), evidence)
        assert isinstance(found, Finding) and found.speedup is not None
        told = f"each of the {ranks} ranks evaluate its share" in found.fix.text
        assert told == (ranks > 1)
        low.append(found.speedup.low)
    assert low[1] < low[0] == low[2]


@pytest.mark.parametrize(("batches", "line"), [(0.0, 36), (2.0, 35)])
def test_an_evaluation_by_parts_of_a_model_is_at_the_busiest_line_of_its_function(
    batches: float, line: int
) -> None:
    """Line 35 is ``model.eval()``; no call of the model itself was seen."""
    evidence = find("TD802").fires()
    clean = evidence.get(Phases)
    assert clean is not None
    switched = replace(module("Ranker"), evaluated_at=at(35, "dice_at"))
    del evidence.facts[Loaders]
    evidence.add(replace(clean, eval_batches_per_step=batches), SWEEP)
    found = run_rule(find("TD802"), evidence.add(Modules(modules=(switched,))))
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == line
    assert ("batch" in found.summary) is bool(batches)


def test_a_metric_after_the_models_call_in_the_loop_itself() -> None:
    """The script trains at lines 57 to 59 and evaluates in line 66; line 67 calls the metric."""
    trees = frames(
        ("", "<module>", 57, -1, 0.1),
        ("", "<module>", 59, -1, 0.1),
        ("", "<module>", 66, -1, 0.05),
        ("", "<module>", 67, -1, 0.7),
        ("", "concordance", 40, 3, 0.7),
    )
    pairs = stack(40, 0.7, function="concordance")
    calls = ops(
        op_line(57, "forward", 9, at=at(57, "<module>")),
        op_line(59, "optimizer", 9, at=at(59, "<module>")),
    )
    model = module("Net", parameters=9, evaluated_at=at(66, "<module>"))
    evidence = find("TD802").fires().add(trees, calls, stacks((pairs,)), Modules(modules=(model,)))
    found = run_rule(find("TD802"), evidence)
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == 40
    assert "concordance" in found.fix.text


@pytest.mark.parametrize(("collected", "line", "kept"), [(0.4, 37, 0.4), (0.25, 47, None)])
def test_outputs_that_a_framework_collects(collected: float, line: int, kept: float | None) -> None:
    """Logits of all batches, kept for metrics that take their largest."""
    trees = frames(
        ("", "main", 120, -1, 1.0),
        (LOOP, "Trainer.evaluation_loop", 0, 0, 0.6),
        ("/opt/lib/trainer_pt_utils.py", "EvalLoopContainer.add", 0, 1, collected),
        ("", "compute_metrics", 37, 1, 0.01),
    )
    sampled = stacks((replace(stack(120, 0.6), evaluating=0.6, own_frac=0.0),))
    fit = op_line(120, "optimizer", 9, at=at(120, "main"))
    called = Modules(modules=(module("Bert", 10, evaluated_at=at(120, "main")),))
    evidence = find("TD802").fires().add(trees, sampled, ops(fit), called)
    found = run_rule(find("TD802"), evidence)
    assert isinstance(found, Finding) and found.location
    assert found.location.line == line
    assert ("collects the model's outputs" in found.summary) is (kept is not None)
    if kept:
        step, half = 50, 25 * kept / 0.6 / 2
        assert found.speedup and found.speedup.low == pytest.approx(step / (step - half), rel=0.01)
