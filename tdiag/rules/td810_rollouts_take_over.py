"""Gathering what to train on takes a large part of the training time

## What it measures
Time in calls of the model without gradients, with what lies between them, per training step, where
nothing tells of an evaluation (no DataLoader feeds them, no loss module judges them) and actions or
tokens are drawn (`torch.distributions`, `torch.multinomial`): an agent's rollouts, or generation.

## Why it is slow
One environment after another, or one token after another, calls the model on very little each time:
Python, dispatch and the environment's own code cost the same for one as for many.

## What to do
Step more environments (or sequences) at once, so that one call of the model serves all of them, and
let environments that work in Python run in processes of their own (`AsyncVectorEnv` of gymnasium,
`SubprocVecEnv` of stable-baselines3). `validate_args=False` spares the distributions' checks.

## How the gain is computed
High end: with eight times as many at once, 6/7 of the time is gone: a small policy on a cart pole
in Python took 1.8, 7.0 and 22.8 times less for each of 2, 8 and 32 environments than for one (torch
2.13, one core). Low end: nothing, as where the environment itself does the work.

## When this advice is wrong
More environments for the same number of samples make shorter rollouts, which is another training.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.kinds import Budget, CallRow, Calls, Modules, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.rules.base import Found, Gain, held, where
from tdiag.rules.evaluation import LARGE_FRAC, drawn, evaluation_place, gathers
from tdiag.rules.examples import budget, phases
from tdiag.rules.measures import count, ns
from tdiag.units import duration, percent, plural

CODE = "TD810"
NAME = "rollouts-take-over"
CLASS = "rollout"

# Eight environments at once instead of one, in the trial that the docstring tells of.
EIGHT_AT_ONCE_FRAC = 1 - 1 / 7.0


def check(
    budget: Budget, phases: Phases, calls: Calls | None, modules: Modules | None
) -> Found | None:
    gathering = held(budget, "evaluation")
    share = gathering / budget.step_ns
    if share < LARGE_FRAC or not gathers(phases, calls):
        return None
    at = evaluation_place(None, modules)
    return Found(
        summary=(
            f"Calls of the model that gather what to train on{where(at)} take {percent(share)} of"
            f" the training time: {duration(gathering)} for each training step,"
            f" {plural(phases.eval_batches_per_step, 'call')}."
        ),
        evidence=(
            ns("calls without gradients and between them", gathering, "budget"),
            count("calls of the model in it", phases.eval_batches_per_step, "baseline", "per_step"),
            count("draws from a distribution", drawn(calls), "calls", "per_step"),
        ),
        fix=Fix(
            f"Step more environments (or sequences) at once and call the model on all of their"
            f" states{where(at)}; environments that work in Python belong into processes of their"
            " own.",
            "manual",
        ),
        gain=Gain(
            0.0,
            gathering * EIGHT_AT_ONCE_FRAC,
            "high end: eight times as many at once; low end: the environment itself does the work.",
            ("evaluation",),
        ),
        at=at,
    )


def fires() -> Evidence:
    """An agent's rollouts: 128 draws for every 16 updates."""
    drawing = Place(file="/env/torch/distributions/categorical.py", line=144, function="sample")
    rows = (CallRow(at=drawing, calls=8.0, own_ns=1e6, total_ns=2e6),)
    step = budget(forward=8, loss=1, backward=14, optimizer=2, evaluation=25)
    clean = replace(phases(evaluation=25), eval_batches_per_step=8.0, eval_evident=False)
    return Evidence().add(step, clean, Calls(steps=16, rows=rows))


def clear() -> Evidence:
    """As long, but a DataLoader feeds it: a generative model that is evaluated."""
    known = [kind for kind in (fires().get(Budget), fires().get(Calls)) if kind]
    clean = replace(phases(evaluation=25), eval_batches_per_step=8.0)
    return Evidence().add(*known, clean)
