"""Calls of the model without gradients: an evaluation, or an agent's rollouts."""

from __future__ import annotations

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
from tdiag.rules.examples import budget, flags, module, phases, stack, stacks


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


@pytest.mark.parametrize(
    "evidence", [acting(0.1), acting(0.6, library="numpy"), acting(0.6, imported="")]
)
def test_other_calls_and_quick_environments_are_no_rollouts(evidence: Evidence) -> None:
    assert "TD810" not in found(evidence)
