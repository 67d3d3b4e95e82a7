"""Evaluation takes a large part of the training time

## What it measures
Evaluation time per training step: forward passes that no backward follows, with their data, or what
follows `model.eval()` if only parts of the model are called. If more than half of it does not call
the model (metrics, decoding, plots), the finding names that line. If a framework runs it, the
finding names the line of `validation_step` that takes most of it, or that of the metrics if more
than half of it collects the model's outputs for them; if one loader is read several
times in a row, with no training step between, the line that does so.

## Why it is slow
Evaluating every few steps, or on a large validation set, costs as much as training on it without
the backward pass.

## What to do
Evaluate less often, or on a fixed part of the validation set. Use a larger batch there, because no
gradients take memory. For several thresholds or metrics run the model once, and keep its outputs:
it does not change in between.

## How the gain is computed
Low end: a quarter as many evaluations, or, if a line beside the model or collecting its outputs
takes most of it, that work at half its cost, or, if the same data is read several times in a row,
half of the further times; nothing, if only one evaluation and no end of an epoch was seen: it may
be rare.
High end: so few that they take five percent of the time.

## When this advice is wrong
An agent's rollouts, and generation, gather training data and are not evaluation: if actions or
tokens are drawn, TD810 applies; otherwise the advice mentions both. Early stopping and schedules
that watch the validation loss need it for each decision.
"""

from __future__ import annotations

import linecache
import math
import re

from msgspec.structs import replace

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import Environment
from tdiag.evidence.sampled import CallTrees, StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases, StepHistory, Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls, Ops
from tdiag.evidence.training import Modules
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place, Spot
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import Found, Gain, count, held, ns, where
from tdiag.rules.callers import busiest_beside, caller_of, inclusive, inclusive_of
from tdiag.rules.evaluation import (
    LARGE_FRAC,
    SEEN_ONCE,
    abstain_unless_epoch_ended,
    collecting_frac,
    evaluation_place,
    gathers,
    line_in_framework,
    over,
    seen_once,
)
from tdiag.rules.examples import at, budget, loaders, phases
from tdiag.rules.loop_lines import AFTER as AFTER_THE_STEP
from tdiag.rules.loop_lines import FunctionKey, beside_the_step, chain, function_key, trains_at
from tdiag.rules.syntax import function_around
from tdiag.rules.thresholds import (
    LOW_END_FRAC,
    MIN_SAMPLES,
    RARER_LOW_FRAC,
)
from tdiag.units import duration, percent, plural

CODE = "TD802"
NAME = "evaluation-takes-over"
CLASS = "eval"
UNTRIED = "how often is the user's choice; `ceiling.evaluation` bounds the gain"
AFTER = {
    "TD229": "what is evaluated again gives the same",
    "TD801": "without gradients an evaluation takes less time, and rarer ones hide their cost",
}

USUAL_FRAC = Threshold(
    0.05,
    "of the training time",
    "By arithmetic, rounded: a validation set of a fifth of the data, forward only (a third of a"
    " step), once an epoch, takes 6 %.",
)

MIN_IN_A_ROW = Threshold(
    3,
    "passes over one loader",
    "Heuristic: a second one may serve another model, an average of the weights for example.",
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
    stacks: Stacks | None,
    ops: Ops | None,
    environment: Environment | None,
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
    if at is not None and not phases.eval_batches_per_step:  # only parts of a model are called
        at = busiest_beside(at, trees) or at
    if at is None or trains_at(at, ops, trees):  # a framework runs the whole loop
        called = [module.evaluated_at for module in modules.modules] if modules else []
        inside = [x for x in (line_in_framework(trees), *called) if inclusive(x, trees)]
        at = max(inside, key=lambda x: inclusive(x, trees), default=at)
    places, told, cheaper = over(at, loaders), "", _larger_batches(loaders)
    least, how = evaluating * RARER_LOW_FRAC, "a quarter as many evaluations"
    times = _in_a_row(loaders)
    if times >= MIN_IN_A_ROW and at is not None:
        at = caller_of(at, trees) or at
        told = f" The same data is read {times} times in a row{where(at)}."
        cheaper += " Or run the model on it once, keep the outputs, and compute all from them."
        least = evaluating * (1 - 1 / times) * LOW_END_FRAC
        how = "half of what further passes over the same data take"
    evaluates = _evaluating(ops, modules)
    inline = _after_an_evaluation(stacks, ops, trees, modules)
    beside = _beside_the_model(stacks, trees, evaluates, inline)
    # Samples may have seen more or fewer evaluations than the clean steps.
    seen = sum(line.evaluating for line in stacks.training) if stacks else 0.0
    seen = max(seen, inclusive_of(evaluates, trees))
    ranks = environment.world_size if environment else 1
    if ranks > 1:
        cheaper += f" Or let each of the {ranks} ranks evaluate its share, if each does all of it."
        if least > (shared := evaluating * (1 - 1 / ranks)):
            least, how = shared, f"each of {ranks} ranks evaluates its share"
    beside_frac = min(1.0, sum(line.self_frac for line in beside) / (seen or share))
    if beside_frac > MAJORITY_FRAC:
        at = beside[0].at
        told = f" {percent(beside_frac)} of it is not the model, most of that{where(at)}."
        cheaper += f" Or make what {at.function} does{where(at)} cheaper."
        least = evaluating * beside_frac * LOW_END_FRAC
        how = "what does not call the model at half its cost"
    collecting = min(1.0, collecting_frac(trees) / (seen or share))
    if collecting > max(beside_frac, MAJORITY_FRAC):
        at = line_in_framework(trees) or at
        told = f" {percent(collecting)} of it collects the model's outputs{_for(at)}."
        cheaper += " Or keep less of each output: what the metrics need."
        least = evaluating * collecting * LOW_END_FRAC
        how = "outputs are collected at half the cost"
    return Found(
        summary=(
            f"Evaluation takes {percent(share)} of the training time: {duration(evaluating)}"
            f"{_batches(phases)} per training step.{told}"
        ),
        evidence=(
            ns("evaluation, per training step", evaluating, "budget"),
            *(
                (count("evaluation batches", batches, "baseline", "per_step"),)
                if (batches := phases.eval_batches_per_step)
                else ()
            ),
        ),
        fix=Fix(
            f"Evaluate{places} {rarer} times less often, or on a fixed sample that is {rarer} times"
            f" smaller.{cheaper}{_caution(phases)}",
            "manual",
            action=f"Evaluate {rarer} times less often",
        ),
        gain=Gain(
            0.0 if once else least,
            max(evaluating - usual, evaluating * (1 - 1 / times)),
            f"low end: {SEEN_ONCE if once else how}; high end: it"
            f" takes {percent(USUAL_FRAC)} of the time.",
            ("evaluation",),
        ),
        at=at,
    )


def _for(at: Place | None) -> str:
    return f" for {at.function}{where(at)}" if at else ""


def _batches(phases: Phases) -> str:
    number = phases.eval_batches_per_step
    return f" and {plural(number, 'batch', 'batches')}" if number else ""


def _in_a_row(loaders: Loaders | None) -> int:
    known = loaders.loaders if loaders else ()
    return max((x.in_a_row for x in known if x.role == "eval"), default=1)


def _larger_batches(loaders: Loaders | None) -> str:
    """Without gradients at least the training's batch size fits into memory."""
    train = loaders.train() if loaders else None
    size = (train.batch_size or 0) if train else 0
    small = [
        x
        for x in (loaders.loaders if loaders else ())
        if x.role == "eval" and x.batch_size and x.batch_size < size
    ]
    if not small:
        return ""
    worst = min(small, key=lambda x: x.batch_size or 0)
    return f" Or in batches of {size} instead of {worst.batch_size}{where(worst.created_at)}."


def _evaluating(ops: Ops | None, modules: Modules | None) -> set[FunctionKey]:
    """The user's functions that call the model in evaluation and do not train."""
    training = {
        function_key(x.at.file, x.at.function)
        for x in (ops.lines if ops else ())
        if x.phase in ("forward", "loss", "backward", "optimizer")
    }
    called = (module.evaluated_at for module in (modules.modules if modules else ()))
    return {function_key(x.file, function_around(x)) for x in called if x} - training


def _after_an_evaluation(
    stacks: Stacks | None, ops: Ops | None, trees: CallTrees | None, modules: Modules | None
) -> set[Spot]:
    """The lines that follow the model's call in an evaluation that the training's own function
    does, after its step, and what they call."""
    frames = trees.training if trees else ()
    called = [module.evaluated_at for module in (modules.modules if modules else ())]
    first = {(function_key(x.file, function_around(x)), x.line) for x in called if x}
    return {
        line.at.spot
        for line in beside_the_step(AFTER_THE_STEP, stacks, ops, trees)
        for function, number in chain(line, frames)
        if any(function == of and number >= least for of, least in first)
    }


def _beside_the_model(
    stacks: Stacks | None,
    trees: CallTrees | None,
    evaluating: set[FunctionKey],
    inline: set[Spot],
) -> list[StackLine]:
    """The lines of an evaluation that do not call the model, most samples first: metrics, decoding,
    plots. An evaluation is what a framework runs as one, one of these functions, or lines of the
    training's own."""
    if stacks is None or stacks.samples < MIN_SAMPLES:
        return []
    frames = trees.training if trees else ()
    return [
        line
        for line in stacks.training
        if not line.phase
        and not _of_a_module(line)
        and line.own_frac + line.elsewhere_frac > MAJORITY_FRAC * line.self_frac
        and (
            line.evaluating > MAJORITY_FRAC * line.self_frac
            or line.at.spot in inline
            or any(function in evaluating for function, _ in chain(line, frames))
        )
    ]


def _of_a_module(line: StackLine) -> bool:
    """Whether the line is in a method of a class that its file derives from torch's Module: a model
    may be evaluated without being called as a module."""
    owner = line.at.function.rpartition(".")[0].rpartition(".")[2]
    derived = re.compile(rf"class {re.escape(owner)}\(.*\bModule\b")
    return bool(owner) and any(map(derived.search, linecache.getlines(line.at.file)))


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
