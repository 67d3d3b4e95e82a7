"""Calls of the model without gradients: an evaluation, or an agent's rollouts."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose.costs import weigh
from tdiag.diagnose.engine import run_rules
from tdiag.diagnose.verdict import judge
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import CallRow, Calls
from tdiag.evidence.training import Modules
from tdiag.model.diagnosis import Finding
from tdiag.model.place import Place
from tdiag.rules import td810_rollouts_take_over as rule
from tdiag.rules.catalogue import all_rules
from tdiag.rules.evaluation import drawn
from tdiag.rules.examples import (
    MS,
    at,
    budget,
    environment,
    flags,
    module,
    op_line,
    ops,
    phases,
    stack,
    stacks,
)  # fmt: skip


def found(evidence: Evidence) -> dict[str, Finding]:
    return {finding.code: finding for finding in run_rules(evidence, all_rules())[0]}


def without_draws(**changes: object) -> Evidence:
    budget, phases = rule.fires().get(Budget), rule.fires().get(Phases)
    assert budget and phases
    return Evidence().add(budget, replace(phases, **changes))


def test_rollouts_are_no_evaluation() -> None:
    evidence = rule.fires()
    phases = evidence.get(Phases)
    assert phases is not None
    evidence.add(
        replace(phases, eval_train_mode_frac=1.0, train_eval_mode_frac=0.0),
        Modules(modules=(module("Agent"),)),
    )
    budget = evidence.get(Budget)
    assert budget is not None
    assert set(found(evidence)) == {"TD810"}  # neither rarer evaluations nor another mode
    verdict = judge(evidence, budget, list(found(evidence).values()))
    assert verdict.cls == "rollout"
    assert "gathering training data" in verdict.summary


@pytest.mark.parametrize(
    ("file", "kind"),
    [("/env/torch/distributions/categorical.py", "TD810"), ("/home/me/data.py", "TD802")],
)
def test_rollouts_between_the_profiled_calls_are_seen_in_stacks(file: str, kind: str) -> None:
    """CleanRL's PPO gathers once in 16 steps; cProfile watched two steps between."""
    draw = CallFrame(name="Categorical.sample", file=file, line=0, parent=-1, frac=0.03, user=False)
    evidence = without_draws().add(Calls(steps=2, rows=()), CallTrees(training=(draw,), workers=()))
    budget = evidence.get(Budget)
    assert budget is not None
    assert set(found(evidence)) == {kind}
    cls = judge(evidence, budget, list(found(evidence).values())).cls
    assert cls == {"TD810": "rollout", "TD802": "eval"}[kind]


def test_without_draws_the_advice_names_both() -> None:
    doubtful = found(without_draws(eval_train_mode_frac=1.0))["TD802"]
    assert "If it gathers training data" in doubtful.fix.text
    for clear in (
        {"eval_train_mode_frac": 0.0},
        {"eval_train_mode_frac": 1.0, "eval_evident": True},
    ):
        assert "gathers" not in found(without_draws(**clear))["TD802"].fix.text


@pytest.mark.parametrize(
    ("file", "function", "draws"),
    [
        ("/env/torch/distributions/normal.py", "sample", 3.0),
        ("", "<built-in method torch.multinomial>", 3.0),
        ("/env/torch/distributions/normal.py", "rsample", 0.0),  # with gradients: not gathered
        ("/home/me/data.py", "sample", 0.0),
    ],
)
def test_what_draws(file: str, function: str, draws: float) -> None:
    at = Place(file=file, line=1, function=function)
    row = CallRow(at=at, calls=3.0, own_ns=1e6, total_ns=1e6)
    assert drawn(Calls(steps=2, rows=(row,))) == draws


def acting(share: float, library: str = "gymnasium", imported: str = "gymnasium") -> Evidence:
    """A DQN: ten calls of the model it trains, with a step of the environment after each."""
    step = budget(forward=24, loss=1, backward=3, optimizer=2)
    line = replace(stack(38, share, "Env.step (envs/cart.py)"), library=library)
    others = stack(46, 0.9 - share, "Linear.forward (modules/linear.py)")
    return Evidence().add(
        step,
        phases(forward=24, loss=1, backward=3, optimizer=2),
        flags(agent_library=imported),
        stacks((line, others)),
    )


def test_an_environment_between_two_calls_of_the_model_is_no_forward() -> None:
    evidence = acting(0.6)
    finding = found(evidence)["TD810"]
    assert finding.location is not None and finding.location.line == 38
    assert finding.summary.startswith("Stepping the environment at train.py:38 takes 60%")
    step = evidence.get(Budget)
    assert step is not None
    costs = weigh(evidence, step, [finding])
    assert costs.by_class["rollout"] > 0.3 * step.step_ns
    assert costs.compute + costs.by_class["rollout"] == pytest.approx(step.step_ns)


CLASSES = """\
class Cart:
    def reset(self):
        return self.state

    def step(self, push):
        self.state = self.draw(push)
        return self.state, 1.0, False

    def draw(self, push):
        return picture.resize((480, 320))

class Recorder:
    def reset(self):
        return self.cart.reset()

    def step(self, push):
        return self.cart.step(push)

class Schedule:
    def reset(self):
        self.rate = 0.1

    def step(self):
        self.rate *= search(self.rate)
        return self.rate
"""


def by_hand(folder: Path, name: str, line: int, outer: str = "", calls: float = 0.0) -> Evidence:
    """The step waits for 60 % of its time at ``line`` of CLASSES, after an action without
    gradients."""
    file = folder / "cart.py"
    file.write_text(CLASSES)
    called = CallFrame(name=outer, file=str(file), line=17, parent=-1, frac=0.6, user=True)
    frame = CallFrame(name=name, file=str(file), line=line, parent=-1, frac=0.6, user=True)
    frames = (called, replace(frame, parent=0)) if outer else (frame,)
    place = Place(file=str(file), line=line, function=name)
    drawing = replace(stack(line, 0.6, "Image.resize (PIL/Image.py)"), at=place)
    others = stack(46, 0.3, "Linear.forward (modules/linear.py)")
    torch_calls = (op_line(line, "prepare", calls, at=place),) if calls else ()
    parts = {"prepare": 60.0, "forward": 30.0, "backward": 8.0, "optimizer": 2.0}
    clean = replace(phases(**parts), cpu_ns={"prepare": 58 * MS})
    return Evidence().add(
        budget(**parts), clean, flags(), stacks((drawing, others)), environment(),
        CallTrees(training=frames, workers=()),
        ops(*torch_calls, op_line(46, "forward", 90, at=at(46, "forward"))),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "line", "outer"),
    [("Cart.step", 6, ""), ("Cart.draw", 10, "Recorder.step")],
)
def test_an_environment_written_by_hand_is_one(
    tmp_path: Path, name: str, line: int, outer: str
) -> None:
    evidence = by_hand(tmp_path, name, line, outer)
    finding = found(evidence)["TD810"]
    assert finding.location is not None and finding.location.line == line
    assert finding.components == ("prepare",)
    step = evidence.get(Budget)
    assert step is not None
    verdict = judge(evidence, step, [finding])
    assert verdict.cls == "rollout" and verdict.share == pytest.approx(0.6, abs=0.1)


ARRAYS = """\
def collect(envs, obs, kept):
    for k, env in enumerate(envs):
        kept["obs"][0] = obs
        obs[k], kept["rewards"][0, k], done = env.step(act(obs))
"""
MEMORY = """\
def collect(self):
    after, reward, done = (
        self.env.step(self.act(self.seen)))
    self.memory.push(self.seen, reward)
    self.seen = after
"""
REWARDS = """\
def score(env, rewards):
    obs, done = env.reset(), False
    while not done:
        obs, reward, done = env.step(int(act(torch.as_tensor(obs))))
        rewards.append(reward)
    print(obs)
"""


@pytest.mark.parametrize(
    ("sources", "name", "kind"),
    [
        ([(ARRAYS, 4)], "Cart.step", "TD810"),
        ([(MEMORY, 3)], "Cart.step", "TD810"),
        ([(REWARDS, 4)], "Cart.step", "TD802"),
        ([(ARRAYS, 4), (REWARDS, 4)], "Cart.step", "TD802"),  # which of them takes longer?
        ([(ARRAYS, 4)], "Schedule.step", "TD802"),
        ([], "Cart.step", "TD802"),
    ],
)
def test_without_draws_of_torch_kept_observations_are_training_data(
    tmp_path: Path, sources: list[tuple[str, int]], name: str, kind: str
) -> None:
    cart = tmp_path / "cart.py"
    cart.write_text(CLASSES)
    own = CLASSES.splitlines().index("        self.state = self.draw(push)") + 1
    line = own if name == "Cart.step" else len(CLASSES.splitlines())
    frames: list[CallFrame] = []
    for number, (source, at_line) in enumerate(sources):
        file = tmp_path / f"train{number}.py"
        file.write_text(source)
        outer = CallFrame(
            name="collect", file=str(file), line=at_line, parent=-1, frac=0.05, user=True
        )
        inside = replace(outer, name=name, file=str(cart), line=line, parent=len(frames))
        frames += (outer, inside)
    evidence = without_draws().add(CallTrees(training=tuple(frames), workers=()))
    assert set(found(evidence)) & {"TD802", "TD810"} == {kind}


@pytest.mark.parametrize(
    ("name", "line", "calls"),
    [
        ("Schedule.step", 25, 0.0),  # its step returns one value
        ("Cart.draw", 10, 0.0),  # not called by a step
        ("Cart.step", 6, 4.0),  # it calls torch: of many states at once, perhaps
    ],
)
def test_other_steps_are_no_environments(
    tmp_path: Path, name: str, line: int, calls: float
) -> None:
    assert "TD810" not in found(by_hand(tmp_path, name, line, calls=calls))


@pytest.mark.parametrize(
    "evidence", [acting(0.1), acting(0.6, library="numpy"), acting(0.6, imported="")]
)
def test_other_calls_and_quick_environments_are_no_rollouts(evidence: Evidence) -> None:
    assert "TD810" not in found(evidence)
