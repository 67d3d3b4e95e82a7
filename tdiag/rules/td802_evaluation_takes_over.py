"""Evaluation takes a large part of the training time

## What it measures
Evaluation time per training step: forward passes that no backward follows, with their data.

## Why it is slow
Evaluating every few steps, or on a large validation set, costs as much as training on it without
the backward pass.

## What to do
Evaluate less often, or on a fixed part of the validation set. Use a larger batch there, because no
gradients take memory.

## How the gain is computed
Low end: a quarter as many evaluations; nothing, if only one evaluation and no end of an epoch was
seen: it may be rare. High end: so few that they take five percent of the time.

## When this advice is wrong
An agent's rollouts, and generation, gather training data and are not evaluation: if actions or
tokens are drawn, TD810 applies; otherwise the advice mentions both. Early stopping and schedules
that watch the validation loss need it for each decision.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.sampled import CallTrees
from tdiag.evidence.steps import Budget, Phases, StepHistory, Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls
from tdiag.evidence.training import Modules
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, Gain, count, held, ns
from tdiag.rules.evaluation import (
    LARGE_FRAC,
    SEEN_ONCE,
    abstain_unless_epoch_ended,
    evaluation_place,
    gathers,
    over,
    seen_once,
)
from tdiag.rules.examples import at, budget, loaders, phases
from tdiag.rules.thresholds import RARER_LOW_FRAC
from tdiag.units import duration, percent, plural

CODE = "TD802"
NAME = "evaluation-takes-over"
CLASS = "eval"
UNTRIED = "how often is the user's choice; `ceiling.evaluation` bounds the gain"
AFTER = {"TD801": "without gradients an evaluation takes less time, and rarer ones hide their cost"}

USUAL_FRAC = Threshold(
    0.05,
    "of the training time",
    "By arithmetic, rounded: a validation set of a fifth of the data, forward only (a third of a"
    " step), once an epoch, takes 6 %.",
)


def check(
    budget: Budget,
    phases: Phases,
    loaders: Loaders | None,
    modules: Modules | None,
    calls: Calls | None,
    history: StepHistory | None,
    trees: CallTrees | None,
    steps: Steps | None,
) -> Found | None:
    evaluating = held(budget, "evaluation")
    if not evaluating:
        abstain_unless_epoch_ended(history, "evaluation")
    share = evaluating / budget.step_ns
    if share < LARGE_FRAC or gathers(phases, calls, trees):
        return None
    training = budget.step_ns - evaluating
    usual = training * USUAL_FRAC / (1 - USUAL_FRAC)
    once = seen_once("evaluation", phases, steps, history)
    rarer = math.ceil(evaluating / usual) if usual else 1
    at = evaluation_place(loaders, modules)
    return Found(
        summary=(
            f"Evaluation takes {percent(share)} of the training time: {duration(evaluating)} and"
            f" {plural(phases.eval_batches_per_step, 'batch', 'batches')} per training step."
        ),
        evidence=(
            ns("evaluation, per training step", evaluating, "budget"),
            count("evaluation batches", phases.eval_batches_per_step, "baseline", "per_step"),
        ),
        fix=Fix(
            f"Evaluate{over(at, loaders)} {rarer} times less often, or on a fixed sample that is"
            f" {rarer} times smaller.{_caution(phases)}",
            "manual",
            action=f"Evaluate {rarer} times less often",
        ),
        gain=Gain(
            0.0 if once else evaluating * RARER_LOW_FRAC,
            evaluating - usual,
            f"low end: {SEEN_ONCE if once else 'a quarter as many evaluations'}; high end: it"
            f" takes {percent(USUAL_FRAC)} of the time.",
            ("evaluation",),
        ),
        at=at,
    )


def _caution(phases: Phases) -> str:
    """A warning if only the missing gradients suggest that this is an evaluation."""
    if phases.eval_evident or not phases.eval_train_mode_frac:
        return ""
    return " If it gathers training data, step more environments or sequences at once."


def fires() -> Evidence:
    step = budget(forward=8, loss=1, backward=14, optimizer=2, evaluation=25)
    clean = replace(phases(evaluation=25), eval_grad_frac=0.0, eval_batches_per_step=2.0)
    return Evidence().add(step, clean, loaders(role="eval", created_at=at(47)))


def clear() -> Evidence:
    """Once an epoch, on a tenth of the data."""
    step = budget(forward=8, loss=1, backward=14, optimizer=2, evaluation=0.8)
    return Evidence().add(step, replace(phases(evaluation=0.8), eval_batches_per_step=0.1))
