"""Gathering training data takes a large part of the training time

## What it measures
Time per training step in calls of the model without gradients and between them, if nothing suggests
an evaluation (no DataLoader feeds them, no loss module is applied) and actions or tokens are drawn
(`torch.distributions`, `torch.multinomial`), or the observations of an environment are kept: an
agent's rollouts, or generation. Otherwise the environment runs between two calls of the model, or
between an action and the step's batch. Then the rule counts samples of the lines that call a
library of environments (such as gymnasium), and of the script's own. These are classes with
`reset()` and a `step()` that returns an observation, a reward and more.

## Why it is slow
Environments or tokens come one after another, so the model is called on very little each time.
Python, dispatch and the environment's own code cost the same for one as for many.

## What to do
Step more environments (or sequences) at once, so that one call of the model serves all of them. Run
environments written in Python in their own processes (`AsyncVectorEnv` of gymnasium,
`SubprocVecEnv` of stable-baselines3). `validate_args=False` skips the distributions' checks.

## How the gain is computed
High end: with eight times as many at once, 6/7 of the time is gone. A small policy on a cart pole
in Python took 1.8, 7.0 and 22.8 times less per environment with 2, 8 and 32 environments than with
one (torch 2.13, one core). Low end: nothing, if the environment itself does the work.

## When this advice is wrong
More environments for the same number of samples make shorter rollouts, which changes training.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import CallRow, Calls, Ops
from tdiag.evidence.training import Flags, Modules
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import Found, Gain, count, frac, held, known_to, ns, where
from tdiag.rules.environments import stepping
from tdiag.rules.evaluation import (
    LARGE_FRAC,
    drawing_frac,
    drawn,
    evaluation_place,
    gathers,
)
from tdiag.rules.examples import budget, phases
from tdiag.units import duration, percent, plural

CODE = "TD810"
NAME = "rollouts-take-over"
CLASS = "rollout"
UNTRIED = "the script must make several environments"

# No mark separates an environment from these.
_UNMARKED = "forward", "prepare", "other", "unattributed", "evaluation"

EIGHT_AT_ONCE = Threshold(
    7.0,
    "times as fast",
    "Measured, eight cart poles in Python at once instead of one, small policy, torch 2.13, one"
    " core (benchmarks/rule_constants.py td810).",
)


def check(
    budget: Budget,
    phases: Phases,
    calls: Calls | None,
    modules: Modules | None,
    trees: CallTrees | None,
    flags: Flags | None,
    stacks: Stacks | None,
    ops: Ops | None,
) -> Found | None:
    gathering = held(budget, "evaluation")
    share = gathering / budget.step_ns
    if share < LARGE_FRAC or not gathers(phases, calls, trees):
        return _stepping(budget, flags, stacks, trees, ops)
    at = evaluation_place(None, modules)
    return Found(
        summary=(
            f"Gathering training data{where(at)} takes {percent(share)} of the training time:"
            f" {duration(gathering)} and {plural(phases.eval_batches_per_step, 'call')} of the"
            " model per training step."
        ),
        evidence=(
            ns("calls without gradients and between them", gathering, "budget"),
            count("calls of the model in it", phases.eval_batches_per_step, "baseline", "per_step"),
            count("draws from a distribution", drawn(calls), "calls", "per_step")
            if drawn(calls)
            else frac("samples that draw from a distribution", drawing_frac(trees), "sample"),
        ),
        fix=_fix(at),
        gain=Gain(
            0.0,
            gathering * (1 - 1 / EIGHT_AT_ONCE),
            "high end: eight environments at once; low end: nothing, if the time is their own.",
            ("evaluation",),
        ),
        at=at,
    )


def _stepping(
    budget: Budget,
    flags: Flags | None,
    stacks: Stacks | None,
    trees: CallTrees | None,
    ops: Ops | None,
) -> Found | None:
    """Only samples separate the environment from the forward, or from what makes the batch."""
    lines = stepping(flags, stacks, trees, ops)
    share = sum(line.self_frac for line in lines)
    if stacks is None or budget.has_device or share < LARGE_FRAC:
        return None
    at, spent = lines[0].at, share * budget.step_ns
    _, most = known_to(share, stacks.samples)
    before = held(budget, "prepare") > MAJORITY_FRAC * spent
    return Found(
        summary=(
            f"Stepping the environment{where(at)} takes {percent(share)} of the training time:"
            f" {duration(spent)} per training step."
        ),
        evidence=(
            *(frac(f"samples{where(line.at)}", line.self_frac, "sample") for line in lines[:3]),
            count("samples of the training thread", stacks.samples, "sample"),
        ),
        fix=_fix(at),
        gain=Gain(
            0.0,
            most * budget.step_ns * (1 - 1 / EIGHT_AT_ONCE),
            "high end: eight environments at once; low end: nothing, if the time is their own.",
            ("prepare",)
            if before
            else ("forward", "prepare", "other", "unattributed", "evaluation"),
        ),
        at=at,
    )


def _fix(at: Place | None) -> Fix:
    return Fix(
        "Step more environments (or sequences) at once and call the model on all their"
        f" states{where(at)}. Run environments written in Python in their own processes.",
        "manual",
        action="Step several environments or sequences at once",
        code="envs = gymnasium.vector.AsyncVectorEnv([make_env] * 8)",
    )


def fires() -> Evidence:
    """An agent's rollouts: 128 draws for every 16 updates."""
    drawing = Place(file="/env/torch/distributions/categorical.py", line=144, function="sample")
    rows = (CallRow(at=drawing, calls=8.0, own_ns=1e6, total_ns=2e6),)
    step = budget(forward=8, loss=1, backward=14, optimizer=2, evaluation=25)
    clean = replace(phases(evaluation=25), eval_batches_per_step=8.0, eval_evident=False)
    return Evidence().add(step, clean, Calls(steps=16, rows=rows))


def clear() -> Evidence:
    """As long, but a DataLoader feeds it: the evaluation of a generative model."""
    known = [kind for kind in (fires().get(Budget), fires().get(Calls)) if kind]
    clean = replace(phases(evaluation=25), eval_batches_per_step=8.0)
    return Evidence().add(*known, clean)
