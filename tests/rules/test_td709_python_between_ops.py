"""Python told from torch calls: by the samples that end in a line, less the line's own calls."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import CallFrame, CallTrees, StackLine
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.base import known_to
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, op_line, ops, phases, stack, stacks

OWN = "Net.forward (me/train.py)"
RULE = find("TD709")


def training(line: StackLine, *calls: OpLine) -> Evidence:
    """A step of 20 ms in which ``forward`` makes torch calls in line 10 as well."""
    beside = op_line(10, "forward", 2, at=at(10, "forward"), elapsed_ns=8 * MS)
    step = budget(forward=10, backward=8, optimizer=2)
    return Evidence().add(step, stacks((line,)), ops(beside, *calls))


def sampled(share: float = 0.3, leaf: str = OWN, phase: str = "") -> StackLine:
    return stack(25, share, leaf, phase, "Net.forward")


def test_a_line_without_torch_calls_is_python_whatever_its_function_calls_elsewhere() -> None:
    found = run_rule(RULE, training(sampled()))
    assert isinstance(found, Finding) and found.location is not None
    assert (found.location.line, found.components) == (25, ("forward",))
    _, most = known_to(0.3, 2000)
    assert found.at_best_ns == pytest.approx(most * 20e6, rel=0.01)


def test_a_generator_belongs_to_the_function_that_it_is_written_in() -> None:
    """It makes no torch call of its own, so its phase is that of ``Net.forward``."""
    name = "Net.forward.<locals>.<genexpr>"
    line = stack(25, 0.3, f"{name} (me/train.py)", "", name)
    found = run_rule(RULE, training(line))
    assert isinstance(found, Finding) and found.components == ("forward",)


@pytest.mark.parametrize(("phase", "elsewhere", "fires"), [
    ("forward", 0.3, True),
    ("prepare", 0.3, False),  # it makes the batch
    ("forward", 0.14, False),  # most of its samples are torch's
])  # fmt: skip
def test_what_another_library_does_within_the_model_is_no_torch_call(
    phase: str, elsewhere: float, fires: bool
) -> None:
    """A replay buffer between two calls of an agent's model: ``random.sample`` in line 25."""
    line = stack(25, 0.3, "Random.sample (python3.11/random.py)", "", "sample")
    line = replace(line, own_frac=0.0, elsewhere_frac=elsewhere)
    call = op_line(26, phase, 5, at=at(26, "sample"), elapsed_ns=MS / 10)
    made = budget(prepare=10, forward=10)
    assert isinstance(run_rule(RULE, training(line, call).add(made)), Finding) is fires
    # In one step of ten the agent explores, and calls no model before the buffer.
    explores = replace(call, phase="prepare", elapsed_ns=call.elapsed_ns / 10)
    assert isinstance(run_rule(RULE, training(line, call, explores).add(made)), Finding) is fires


def test_the_clean_steps_show_that_a_line_makes_no_batch_where_the_counted_steps_do_not() -> None:
    """All counted steps explored, but making batches takes a twentieth of the clean ones."""
    line = stack(25, 0.3, "Random.sample (python3.11/random.py)", "", "sample")
    line = replace(line, own_frac=0.0, elsewhere_frac=0.3)
    calls = [
        op_line(26, phase, 5, at=at(26, "sample"), elapsed_ns=ms * MS)
        for phase, ms in (("prepare", 0.2), ("forward", 0.1))
    ]
    few = budget(prepare=1, forward=9, backward=8, optimizer=2)
    assert isinstance(run_rule(RULE, training(line, *calls).add(few)), Finding)


@pytest.mark.parametrize("counted", [False, True])
def test_a_line_of_a_rollout_that_no_counted_step_held_is_not_judged(counted: bool) -> None:
    """CleanRL's PPO: `rewards[step] = torch.tensor(reward)` runs in one step of 16."""
    calls = [op_line(30, "evaluation", 2, at=at(30, "act"))] if counted else []
    evidence = training(sampled(), *calls).add(budget(forward=10, backward=5, evaluation=15))
    assert isinstance(run_rule(RULE, evidence), Finding if counted else Abstained)


@pytest.mark.parametrize(("called_ms", "fires"), [(1.4, True), (1.6, False)])
def test_the_lines_own_torch_calls_are_no_python(called_ms: float, fires: bool) -> None:
    """6 ms of samples: a quarter is 1.5 ms."""
    call = op_line(25, "forward", 3, at=at(25, "forward"), elapsed_ns=called_ms * MS)
    assert isinstance(run_rule(RULE, training(sampled(), call)), Finding) is fires


@pytest.mark.parametrize(
    ("share", "slowed", "fires"),
    [
        (0.05, 0.0, True),
        (0.05, 0.03, True),
        (0.05, 0.3, False),  # the sampler may have spent all of it there
        (0.6, 0.3, True),  # more than the sampler can have added
    ],
)
def test_time_that_the_sampler_may_have_added_is_no_python(
    share: float, slowed: float, fires: bool
) -> None:
    evidence = training(sampled(share))
    evidence.add(replace(stacks((sampled(share),)), slowed_frac=slowed))
    assert isinstance(run_rule(RULE, evidence), Finding) is fires


def test_the_function_is_rewritten_with_its_other_lines() -> None:
    """Mixup by NumPy: beside the loop, a line of 2 ms that spends half of them in torch calls."""
    call = op_line(26, "forward", 1, at=at(26, "forward"), elapsed_ns=1 * MS)
    stacked = stack(26, 0.1, OWN, "", "Net.forward")
    evidence = training(sampled(), call)
    alone, together = (
        run_rule(RULE, evidence.add(stacks(lines)))
        for lines in ((sampled(),), (sampled(), stacked))
    )
    assert isinstance(alone, Finding) and isinstance(together, Finding)
    assert together.at_best_ns == pytest.approx(alone.at_best_ns + 1 * MS, rel=0.01)
    assert alone.speedup is not None and together.speedup is not None
    assert together.speedup.low == alone.speedup.low


@pytest.mark.parametrize(
    ("share", "forward_ms", "fires"),
    [
        (0.05, 10.0, True),  # 2 ms of the clean forward are no torch call: samples found half
        (0.05, 8.0, False),  # nothing is left beside torch calls: the sampler may have added it
        (0.04, 10.0, False),  # too little to matter
    ],
)
def test_python_that_the_clean_time_of_its_phase_holds_was_not_added_by_the_sampler(
    share: float, forward_ms: float, fires: bool
) -> None:
    """A table by NumPy in ``forward``: 1 ms of samples, while sampling took 30 % of a step."""
    line = sampled(share)
    evidence = training(line).add(replace(stacks((line,)), slowed_frac=0.3))
    evidence.add(phases(forward=forward_ms, backward=8, optimizer=2))
    found = run_rule(RULE, evidence)
    assert isinstance(found, Finding) is fires
    if isinstance(found, Finding):
        assert found.speedup is not None and found.speedup.low > 1


@pytest.mark.parametrize(("times", "fires"), [(1.0, True), (4.0, False)])
def test_calls_that_took_longer_while_samples_were_taken_are_no_python(
    times: float, fires: bool
) -> None:
    """A product of 1.2 ms, sampled for 6 ms, beside lines sampled for 1 or 4 times theirs."""
    call = op_line(25, "forward", 1, at=at(25, "forward"), elapsed_ns=1.2 * MS)
    others = [
        op_line(n, "forward", 1, at=at(n, "forward"), elapsed_ns=1 * MS) for n in (30, 31, 32)
    ]
    seen = [
        stack(n, times / 20, "linear (nn/functional.py)", "", "Net.forward") for n in (30, 31, 32)
    ]
    evidence = training(sampled(0.3), call, *others)
    evidence.add(stacks((sampled(0.3), *seen)))
    assert isinstance(run_rule(RULE, evidence), Finding) is fires


def test_samples_in_what_the_line_calls_are_not_its_own() -> None:
    """``loss = criterion(output, target)``: most samples end in the line, the others in torch's
    functional.py; only the former may be Python of this line."""
    call = op_line(25, "forward", 3, at=at(25, "forward"), elapsed_ns=0.8 * MS)
    line = replace(sampled(0.3), own_frac=0.17)
    found = run_rule(RULE, training(line, call))
    assert run_rule(RULE, training(replace(line, own_frac=0.15), call)) is None  # 0.8 of 3.0 ms
    assert isinstance(found, Finding)
    assert found.at_best_ns < 0.2 * 20 * MS - 0.8 * MS


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (sampled(leaf="linear (nn/functional.py)"), "samples end in a library"),
        (sampled(phase="data_wait"), "fetching has rules of its own"),
        (sampled(phase="backward"), "the autograd engine runs under that line"),
        (stack(25, 0.3, "report (me/train.py)", function="report"), "it makes no torch calls"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_may_be_something_else_is_left_alone(line: StackLine, why: str) -> None:
    assert run_rule(RULE, training(line)) is None


def test_a_line_that_writes_a_log_is_logging(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(step, loss)\n")
    leaf = f"forward ({tmp_path.name}/train.py)"
    line = StackLine(at=at(1, "forward", str(script)), self_frac=0.3, leaf=leaf, own_frac=0.3)
    call = op_line(2, "forward", 1, at=at(2, "forward", str(script)))
    assert run_rule(RULE, training(line, call)) is None
    script.write_text("prepare(step, loss)\n")
    linecache.checkcache()
    assert isinstance(run_rule(RULE, training(line, call)), Finding)


def test_too_few_samples_make_the_rule_abstain() -> None:
    evidence = training(sampled())
    evidence.add(replace(stacks((sampled(),)), samples=99))
    assert isinstance(run_rule(RULE, evidence), Abstained)


def call_tree(sampled_at: int) -> CallTrees:
    """``main`` acts in line 40, samples a replay buffer at ``sampled_at``, learns in line 60."""
    file = at(1).file
    frames = [
        CallFrame(name=name, file=file, line=line, parent=parent, frac=share, user=True)
        for name, line, parent, share in (
            ("main", 40, -1, 0.2), ("forward", 10, 0, 0.2),
            ("main", sampled_at, -1, 0.5), ("sample", 25, 2, 0.5),
            ("main", 60, -1, 0.3), ("learn", 70, 4, 0.3),
        )
    ]  # fmt: skip
    return CallTrees(training=tuple(frames), workers=())


@pytest.mark.parametrize(("sampled_at", "components"), [(50, ("forward",)), (30, ()), (65, ())])
def test_a_function_that_makes_no_torch_call_is_placed_by_its_callers_line(
    sampled_at: int, components: tuple[str, ...]
) -> None:
    """NumPy between an agent's action and its update. Before and after these, other rules judge."""
    line = stack(25, 0.5, "sample (me/train.py)", function="sample")
    update = op_line(70, "optimizer", 30, at=at(70, "learn"))
    evidence = training(line, update).add(call_tree(sampled_at))
    found = run_rule(RULE, evidence)
    assert (found.components if isinstance(found, Finding) else ()) == components


def test_a_function_without_torch_calls_has_the_phase_of_the_call_that_follows_it() -> None:
    """``masks[name].mul_(self._param(name))``: each ``_param`` walks over all parameters, after the
    backward of a step that a framework drives."""
    file = at(1).file
    walks = stack(12, 0.4, "Module.named_modules (modules/module.py)", "", "_param")
    walks = replace(walks, own_frac=0.03, elsewhere_frac=0.37)
    frames = (
        CallFrame(name="training_step", file=file, line=46, parent=-1, frac=0.9, user=True),
        CallFrame(name="_param", file=file, line=12, parent=0, frac=0.4, user=True),
    )
    trees = CallTrees(training=frames, workers=())
    follows = op_line(47, "optimizer", 4, at=at(47, "training_step"), elapsed_ns=0.1 * MS)
    step = budget(forward=6, backward=6, optimizer=8)
    evidence = training(walks, follows).add(step, trees)
    found = run_rule(RULE, evidence)
    assert isinstance(found, Finding) and found.location is not None
    assert (found.location.line, found.components) == (12, ("optimizer",))
    prepares = replace(follows, phase="prepare")
    assert run_rule(RULE, training(walks, prepares).add(step, trees)) is None


def test_a_line_that_can_only_be_before_the_forward_is_there() -> None:
    """A schedule of all steps, rebuilt by a framework's hook in each: its function makes no torch
    call, and all but the time before the forward takes a tenth of the step."""
    line = stack(21, 0.86, "cosine (me/train.py)", "", "cosine")
    evidence = Evidence().add(
        budget(prepare=18, forward=1, backward=1), stacks((line,)), ops(op_line(70, "forward", 2))
    )
    found = run_rule(RULE, evidence)
    assert isinstance(found, Finding)
    assert found.components == ("prepare",)
    elsewhere = budget(prepare=11, forward=4, backward=5)
    assert run_rule(RULE, evidence.add(elsewhere)) is None
