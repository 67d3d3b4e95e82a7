"""TD712 beyond its examples, and the rules that leave such loops to it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.costs import weigh
from tdiag.diagnose.engine import run_rule, run_rules
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.steps import Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, OpLine
from tdiag.evidence.training import Flags, Modules
from tdiag.model.diagnosis import Finding
from tdiag.rules import td712_model_called_in_a_loop as rule
from tdiag.rules.base import Found
from tdiag.rules.catalogue import all_rules, find
from tdiag.rules.cells import GRU_HIGH, GRU_LOW, OTHER_TIMES
from tdiag.rules.examples import (
    MS,
    at,
    budget,
    device_time,
    environment,
    flags,
    module,
    op_line,
    ops,
    phases,
)
from tdiag.units import faster

PRICE = Dispatch(op_ns=1500, grad_op_ns=7000)
PARTS = {"forward": 8.0, "loss": 4.0, "backward": 12.0, "optimizer": 1.0}


def called(name: str, times: float) -> Modules:
    plain = module(name, 22, calls_per_step=times, trained_at=at(41, "train"))
    return Modules(modules=(plain,))


def looped(
    parts: dict[str, float],
    modules: Modules,
    *lines: OpLine,
    dispatch: Dispatch = PRICE,
    clean: Phases | None = None,
    known: tuple[Work | None, Roof | None] = (None, None),
    trees: CallTrees | None = None,
    agents: Flags | None = None,
) -> Found | None:
    """A step of these phases, ms, whose torch calls these lines make."""
    return rule.check(
        budget(**parts), clean or phases(**parts), modules, ops(*lines), dispatch, None, *known,
        trees, agents, None,
    )  # fmt: skip


def checked(
    modules: Modules,
    backwards: float = 1,
    dispatch: Dispatch = PRICE,
    known: tuple[Work | None, Roof | None] = (None, None),
    trees: CallTrees | None = None,
    **loop: Any,
) -> Found | None:
    """32 turns of which each makes 5 torch calls in the model and 2 in the criterion."""
    model = {"turns": 32.0, "repeated": 32.0, "one_row": True, "elapsed_ns": 2 * MS,
             "names": {"linear": 64.0}, **loop}  # fmt: skip
    lines = (
        op_line(24, "forward", 160, grad_calls=160.0, **model),
        op_line(42, "loss", 64, grad_calls=64.0, turns=model["turns"], elapsed_ns=0.5 * MS),
        op_line(50, "loss", 64, grad_calls=64.0, elapsed_ns=0.5 * MS),
    )
    clean = phases(**PARTS)
    clean.counts["backward"] = backwards
    return looped(PARTS, modules, *lines, dispatch=dispatch, clean=clean, known=known, trees=trees)


def spent(found: Found | None) -> float:
    assert found is not None
    return next(m.value for m in found.evidence if m.name == "the loop and its backward")


def test_the_criterion_of_the_loop_goes_with_it_and_what_comes_after_it_does_not() -> None:
    assert spent(checked(called("Net", 32))) == 8 * MS + 4 * MS / 2 + 12 * MS * 2.5 / 3


def test_calls_that_work_fire_only_if_each_was_given_one_sample() -> None:
    works = Dispatch(op_ns=15, grad_op_ns=70)
    assert checked(called("Net", 32), dispatch=works) is not None
    assert checked(called("Net", 32), dispatch=works, one_row=False) is None


def test_an_agents_calls_on_one_state_fire_beside_one_training_call_on_a_batch() -> None:
    works = Dispatch(op_ns=15, grad_op_ns=70)
    assert checked(called("Policy", 33), dispatch=works, repeated=1.0) is not None
    assert checked(called("Policy", 33), dispatch=works, repeated=1.0, one_row=False) is None


def needing(ms: float) -> tuple[Work, Roof]:
    """The forward of the loop's calls at best; with its backward the loop takes 20 ms."""
    op = OpWork(name="aten::addmm", dims=(), dtype="float32", count=64.0, flops=ms * 1e6,
                moved=0.0, host_ns=9 * MS, device_ns=None, at=at(24))  # fmt: skip
    return Work(ops=(op,), calls=64.0), Roof(
        flops_per_s={"float32": 1e9}, bytes_per_s=(), source=""
    )


def test_calls_that_take_far_longer_than_their_work_fire_too() -> None:
    works = Dispatch(op_ns=15, grad_op_ns=70)
    little, much = needing(1.0), needing(2.5)
    assert checked(called("Net", 32), dispatch=works, one_row=False, known=little) is not None
    assert checked(called("Net", 32), dispatch=works, one_row=False, known=much) is None


def test_independent_calls_win_what_their_work_leaves_even_if_it_is_done_poorly() -> None:
    works, known = Dispatch(op_ns=15, grad_op_ns=70), needing(0.5)
    layer = {"turns": 1.0, "series": 32.0, "looped_at": at(60)}
    found = checked(called("Net", 1), dispatch=works, known=known, **layer)
    assert found is not None and found.gain is not None
    poorly = 3 * 0.5 * MS / 0.2  # forward and backward at a fifth of the best
    assert found.gain.low_ns == pytest.approx(spent(found) * 31 / 32 - poorly)
    assert "less their work at 20% of the best" in found.gain.why


@pytest.mark.parametrize(
    ("series", "ms", "fires"), [(32.0, 2.5, True), (32.0, 4.0, False), (1.0, 2.5, False)]
)
def test_independent_calls_that_work_win_what_is_not_their_work(
    series: float, ms: float, fires: bool
) -> None:
    """Graphs of a batch, one by one: over twice as long as their shapes need."""
    known, works = needing(ms), Dispatch(op_ns=15, grad_op_ns=70)
    layer = {"turns": 1.0, "one_row": False, "series": series, "looped_at": at(60)}
    found = checked(called("Net", 1), dispatch=works, known=known, **layer)
    assert (found is not None) is fires
    if found is not None and found.gain is not None:
        assert found.gain.high_ns == pytest.approx(spent(found) - 3 * ms * MS)
        assert found.gain.why.endswith("of the calls' time, which is not their work.")


def test_a_layer_that_the_model_calls_in_a_loop_is_found_at_its_line() -> None:
    found = checked(called("Net", 1), turns=1.0)
    assert found is not None and found.at is not None
    assert found.at.line == 24
    assert found.fix.text.startswith("Stack the inputs of linear at train.py:24")
    assert spent(found) == 8 * MS + 12 * MS * 2 / 3  # none of the loss: it was called once
    assert checked(called("Net", 1), turns=1.0, repeated=3.0) is None  # three heads share a layer


def test_series_that_need_nothing_of_each_other_are_one_call_each_step() -> None:
    """Four trajectories of eight steps, integrated one by one at line 60."""
    layer = {"turns": 1.0, "series": 4.0, "looped_at": at(60)}
    frames = [("train", 40, -1), ("step", 60, 0), ("rk4", 50, 1)]  # the phase's name is line 50's
    trees = CallTrees(
        training=tuple(
            CallFrame(name=name, file=at(1).file, line=line, parent=parent, frac=1.0, user=True)
            for name, line, parent in frames
        ),
        workers=(),
    )
    found = checked(called("Net", 1), trees=trees, **layer)
    assert found is not None and found.gain is not None and found.at == at(60)
    assert "4 of the 32 need no earlier one's result: they could be one." in found.summary
    assert found.fix.text.endswith("call it 8 times on the batch.")
    assert spent(found) == (8 + 4 / 2 + 12 * 2.5 / 3) * MS  # with line 50, which is below it
    assert found.gain.high_ns == spent(found) * (1 - 1 / 4)


def test_calls_without_gradients_begin_series_too() -> None:
    """Rollouts on 100 states beside 32 calls that are trained on."""
    found = checked(called("Net", 1), turns=1.0, series=100.0, looped_at=at(24))
    assert found is not None and "None needs another's result." in found.summary
    assert found.fix.text.endswith("call it once on the batch.")


def test_a_recurrence_is_compiled() -> None:
    found = checked(called("Net", 1), turns=1.0, series=1.0, looped_at=at(24))
    assert found is not None and found.gain is not None
    assert "Each call needs the result of the one before it." in found.summary
    assert found.fix.text.startswith("torch.compile what is repeated at train.py:24")
    assert found.gain.low_ns == 0.5 * 7000 * 160


def test_micro_batches_with_a_backward_each_are_no_loop() -> None:
    assert checked(called("Net", 32), backwards=32, repeated=1.0) is None


def test_episodes_that_were_longer_while_counted_are_brought_to_the_clean_ones() -> None:
    found = checked(called("Policy", 16))
    assert found is not None and found.gain is not None
    least = 0.5 * 7000 * (160 + 64)  # of 16 calls, where 32 were counted
    assert found.gain.low_ns == least * (1 - 1 / 16)  # all but one


def test_an_agents_gain_is_known_from_below_alone() -> None:
    """How many environments are stepped at once is not known, nor what of a call is fixed cost."""
    found = run_rule(find("TD712"), find("TD712").fires())
    assert isinstance(found, Finding) and found.speedup is not None
    assert faster(found.speedup.low, found.speedup.high).startswith("at least")
    floor = next(m.value for m in found.evidence if m.name.startswith("fixed cost of these calls"))
    assert isinstance(floor, int)
    assert found.recoverable_ns == pytest.approx(floor * rule.LOW_END_FRAC, abs=1)


def test_what_an_agent_does_with_each_action_is_done_once_too() -> None:
    """The policy takes 8 of 40 ms; line 39, which draws from a distribution and reads the action,
    and line 41, which calls it, take 30. Line 60 runs once, line 12 is in another function."""
    act = op_line(39, "forward", 640, turns=32.0, at=at(39, "train"), elapsed_ns=20 * MS)
    once = op_line(60, "forward", 4, turns=1.0, at=at(60, "train"))
    other = op_line(12, "forward", 32, turns=32.0, at=at(12, "reset"))
    policy = op_line(24, "forward", 1600, turns=32.0, repeated=32.0, one_row=True)
    parts = {"prepare": 28.0, "forward": 8.0, "backward": 2.0, "optimizer": 2.0}
    shares = ((41, 0.2), (39, 0.55), (60, 0.1), (12, 0.1))
    trees = CallTrees(
        training=tuple(
            CallFrame(name="train", file=at(1).file, line=line, parent=-1, frac=frac, user=True)
            for line, frac in shares
        ),
        workers=(),
    )
    found = looped(parts, called("Policy", 32), act, once, other, policy, trees=trees)
    assert found is not None and found.gain is not None
    assert found.gain.high_ns == pytest.approx(0.75 * 40 * MS * 31 / 32)
    assert "prepare" in found.gain.components
    assert "all that is done for each (30.0 ms of samples)" in found.gain.why


def test_a_sequence_wins_for_each_call_what_it_won_where_it_was_tried() -> None:
    price = Dispatch(op_ns=4000, grad_op_ns=7000)
    found = checked(called("GRUCell", 32), dispatch=price, names={"gru_cell": 32.0})
    assert found is not None and found.gain is not None
    assert found.gain.low_ns == pytest.approx(32 * GRU_LOW * 4000)
    cells = (8 + 12 * 2 / 3) * MS  # of the forward and of backward
    # The calls beside the cell on its line, and the loss of each turn, are then done once.
    beside = 7000 * 160 + (spent(found) - cells) * (1 - 1 / rule.WORKING_HIGH)
    per_call, whole = 32 * GRU_HIGH * 4000, cells * (1 - 1 / OTHER_TIMES)
    assert found.gain.high_ns == pytest.approx(max(per_call, whole) + beside)


def test_on_a_device_what_waits_for_launches_counts() -> None:
    step = budget(device=True, compute=60, launch=40)
    clean = phases(**PARTS)
    device = device_time(100, launch_starved_ns=30 * MS)
    found = rule.check(
        step, clean, called("Policy", 32), None, None, device, None, None, None, None, None
    )
    assert found is not None and found.gain is not None
    assert found.gain.high_ns == 30 * MS * (1 - 1 / 32)


def test_the_rules_of_small_calls_and_of_values_leave_it_alone() -> None:
    findings, _ = run_rules(rule.fires(), all_rules())
    assert {finding.code for finding in findings} == {"TD712"}


def tree(*frames: tuple[str, int, int, float]) -> CallTrees:
    """Name, line, the caller's number, share."""
    return CallTrees(
        training=tuple(
            CallFrame(name=name, file=at(1).file, line=line, parent=parent, frac=share, user=True)
            for name, line, parent, share in frames
        ),
        workers=(),
    )


def test_a_loop_through_several_modules_was_counted_as_often_as_the_clean_one() -> None:
    """Four heads are called 32 times each: 128 turns."""
    heads = Modules(modules=called("Linear", 32).modules * 4)
    found = checked(heads, turns=128.0)
    assert found is not None and found.gain is not None
    assert found.gain.low_ns == 7000 * (160 + 64) * (1 - 1 / 32)


def test_the_loop_over_what_is_independent_is_reported_not_the_recurrence_beside_it() -> None:
    """A cell is called 40 times; ten rollouts of eight steps at line 58 take longer."""
    net, cell = called("Actor", 80).modules[0], called("GRUCell", 90).modules[0]
    lines = (
        op_line(45, "forward", 90, grad_calls=90.0, turns=90.0, elapsed_ns=1 * MS,
                repeated=13.0, series=1.0, looped_at=at(64), names={"gru_cell": 90.0}),
        op_line(85, "forward", 400, grad_calls=400.0, turns=80.0, elapsed_ns=6 * MS,
                repeated=80.0, series=10.0, looped_at=at(58), names={"linear": 80.0}),
        op_line(12, "loss", 200, grad_calls=200.0, turns=10.0, elapsed_ns=2 * MS),
    )  # fmt: skip
    trees = tree(("update", 58, -1, 0.9), ("imagine", 85, 0, 0.6), ("returns", 12, 0, 0.3))
    found = looped(PARTS, Modules(modules=(net, cell)), *lines, trees=trees)
    assert found is not None and found.at == at(58)
    assert "10 of the 80 need no earlier one's result" in found.summary


def test_a_loop_whose_work_is_unknown_does_no_more_than_the_whole_step() -> None:
    works = Dispatch(op_ns=15, grad_op_ns=70)
    roof = Roof(flops_per_s={"float32": 1e9}, bytes_per_s=(), source="")
    for ms, fires in ((1.0, True), (9.0, False)):
        op = OpWork(name="aten::mm", dims=(), dtype="float32", count=64.0, flops=ms * 1e6,
                    moved=0.0, host_ns=9 * MS, device_ns=None, at=at(999))  # fmt: skip
        known = (Work(ops=(replace(op, at=None),), calls=64.0), roof)
        found = checked(called("Net", 32), dispatch=works, one_row=False, known=known)
        assert (found is not None) is fires


def test_a_loop_without_places_does_no_more_than_what_ran_as_often() -> None:
    """The layers beside the loop run less often than its calls."""
    works = Dispatch(op_ns=15, grad_op_ns=70)
    roof = Roof(flops_per_s={"float32": 1e9}, bytes_per_s=(), source="")
    product = OpWork(name="aten::mm", dims=(), dtype="float32", count=64.0, flops=1e6, moved=0.0,
                     host_ns=9 * MS, device_ns=None)  # fmt: skip
    for times, fires in ((12.0, True), (64.0, False)):
        layer = replace(product, count=times, flops=9e6)
        known = (Work(ops=(product, layer), calls=80.0), roof)
        found = checked(called("Net", 32), dispatch=works, one_row=False, known=known)
        assert (found is not None) is fires


@pytest.mark.parametrize(
    ("counts", "times", "line"),
    [
        ({"backward": 49.0}, 64, 32),  # 48 gradients within the loss of 16 tasks
        ({"backward": 64.0}, 0, None),  # micro-batches with a backward each
    ],
)
def test_small_calls_that_a_step_repeats_are_named_where_they_come_from(
    counts: dict[str, float], times: int, line: int | None
) -> None:
    """``meta_loss`` at 32 calls ``task_loss``, which calls the model at 23 and updates at 28."""
    parts = {"forward": 8.0, "backward": 12.0, "optimizer": 1.0}
    clean = phases(**parts)
    clean.counts.update(counts)
    clean = replace(clean, grad_calls=48.0 if times else 0.0)
    calls = ops(
        op_line(23, "forward", 512, grad_calls=512.0, turns=64.0, elapsed_ns=4 * MS),
        op_line(28, "forward", 768, grad_calls=768.0, turns=48.0, elapsed_ns=3 * MS),
    )
    frames = tree(
        ("main", 54, -1, 1.0), ("meta_loss", 32, 0, 1.0), ("task_loss", 27, 1, 0.5),
        ("fit_loss", 23, 2, 0.5), ("task_loss", 28, 1, 0.3), ("task_loss", 29, 1, 0.2),
        ("fit_loss", 23, 5, 0.2),
    )  # fmt: skip
    evidence = Evidence().add(budget(**parts), clean, calls, PRICE, frames)
    found = run_rule(find("TD701"), evidence)
    assert isinstance(found, Finding)
    assert (found.location and found.location.line) == line
    assert (f"run {times} times a step" in found.summary) is bool(times)
    assert ("vmap" in found.fix.text) is bool(times)


def test_what_the_line_does_with_each_result_is_done_once_too() -> None:
    """``action = policy.act(state).item()``: drawing and reading take more than the policy."""
    evidence = rule.fires().add(budget(prepare=12, forward=8, loss=1, backward=9, optimizer=1))
    plain = run_rule(find("TD712"), evidence)
    frames = [("collect", 41, -1, 0.7), ("act", 24, 0, 0.3), ("act", 25, 0, 0.4)]
    with_line = run_rule(find("TD712"), evidence.add(tree(*frames)))
    assert isinstance(plain, Finding) and isinstance(with_line, Finding)
    assert with_line.location is not None and with_line.location.line == 41
    assert plain.at_best_ns < with_line.at_best_ns == pytest.approx(31 * MS * 0.7 * 119 / 120)
    assert "prepare" in with_line.components and "prepare" not in plain.components


@pytest.mark.parametrize(("share", "left"), [(0.8, 4), (0.1, 22)])
def test_calls_of_a_model_before_the_step_are_no_preprocessing(share: float, left: float) -> None:
    """Acting comes before the step's own forward, where a batch would be made by hand."""
    parts = {"prepare": 22, "forward": 3, "loss": 1, "backward": 4, "optimizer": 1}
    clean = replace(phases(**parts), cpu_ns={"prepare": 22 * MS})
    frames = [("collect", 41, -1, share), ("act", 24, 0, share / 2)]
    step = budget(**parts)
    evidence = rule.fires().add(step, clean, tree(*frames), environment(device="cpu"))
    findings, _ = run_rules(evidence, [find("TD712")])
    assert weigh(evidence, step, findings).by_class["cpu"] == pytest.approx(left * MS, abs=0.1 * MS)


def test_an_agents_own_calls_are_gathering_data() -> None:
    """Before each update the policy acts for 32 environments, without gradients."""
    plain = checked(called("Policy", 33))
    assert plain is not None and plain.cls == ""
    acting = op_line(24, "forward", 160, turns=32.0, repeated=32.0, one_row=True,
                     elapsed_ns=2 * MS)  # fmt: skip
    parts = {"prepare": 20.0, **PARTS}
    clean = replace(phases(**parts), rolls_out=True)
    agents = flags(agent_library="gymnasium")
    found = looped(parts, called("Policy", 33), acting, clean=clean, agents=agents)
    assert found is not None and found.cls == "rollout"
