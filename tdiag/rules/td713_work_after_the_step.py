"""Work after the step blocks training

## What it measures
Samples of the training thread in the user's lines that run between the optimizer's step and the
next batch: lines below `optimizer.step()` in the loop, lines above it that run when an epoch begins
(if the budget puts most of their time after the step; time that the marks put into the evaluation
before an epoch counts as such if samples show these lines in it), and what they call. TD804 covers
lines that write logs and lines that make what is written, TD803 lines that save the weights. What
sets a variable that the next turn of the loop reads makes the next batch: `cpu`. On a device, lines
that read a value wait for earlier work and do not count.

## Why it is slow
Metrics and callbacks run on the training thread, one after the other, while nothing
trains.

## What to do
Do it every N steps or once an epoch, or keep the tensors and compute on many of them at once.
Create data sets, loaders and tables once, before the first epoch, not in each epoch. What the next
step needs can only be made cheaper, or beside the step.

## How the gain is computed
The lines' share of the samples as time of the step, within the sampling error, times how much
longer the work around the step takes in the clean steps (it may grow with the run). Low end: in
one step of ten; what the next step needs, at half its cost. High end: in one of fifty (or gone), of
the clean time after the step if samples show most of that. With a device the low end is nothing,
because it may work at the same time.

## When this advice is wrong
What must happen every step, such as an average of the weights, cannot happen less often.
"""

from __future__ import annotations

from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.evidence.training import Modules
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.rules.base import Found, Gain, count, frac, held, known_to, sampling_range, where
from tdiag.rules.carried import made_for_next_step
from tdiag.rules.epochs import between_epochs, epochs_place
from tdiag.rules.examples import at, budget, op_line, ops, stack, stacks
from tdiag.rules.log_lines import described, logs, made_for_logs
from tdiag.rules.loop_lines import AFTER as AFTER_THE_STEP
from tdiag.rules.loop_lines import (
    beside_the_step,
    check_samples,
    most_of_clean,
    saved_by_hand,
    waits_for_device,
)
from tdiag.rules.thresholds import LOG_EVERY, LOG_LOW_FRAC, LOW_END_FRAC
from tdiag.units import per_step

CODE = "TD713"
NAME = "work-after-the-step"
CLASS = "overhead"
UNTRIED = "how rarely the work may be done is unknown; `--freeze` of its function bounds the gain"
AFTER = {
    "TD714": "work that grows with the run grows as well if it is done less often",
    "TD756": "what is written into the buffer need not be rarer",
}


def check(
    budget: Budget,
    stacks: Stacks,
    ops: Ops,
    trees: CallTrees | None,
    phases: Phases | None,
    modules: Modules | None,
) -> Found | None:
    check_samples(stacks)
    scale = phases.around_scale if phases else 1.0
    seen = (stacks, ops, trees)
    others = [*made_for_logs(*seen), *described(*seen), *saved_by_hand(*seen)]
    between = between_epochs(budget, stacks, ops, trees, modules)
    beside = beside_the_step(AFTER_THE_STEP, stacks, ops, trees)
    lines = [
        x
        for x in (*beside, *between)
        if not logs(x) and x not in others and not waits_for_device(x, budget, ops)
    ]
    share = sum(line.self_frac for line in lines)
    least, most = (scale * x for x in known_to(share, stacks.samples))
    clean = held(budget, "other") / budget.step_ns
    share = min(scale * share, max(clean, share))
    cost = share * budget.step_ns
    if share < NOTICEABLE_FRAC:
        return None
    top = max(lines, key=lambda line: line.self_frac)
    # The clean steps measure all work after the step, without the sampler.
    sampled = scale * sum(line.self_frac for line in beside)
    at_most = max(most, most_of_clean(clean, share, sampled))
    carried = top not in between and made_for_next_step(top, ops, trees)
    low, kept = LOG_LOW_FRAC, "in one step of ten"
    high, gone = 1 - 1 / LOG_EVERY, f"in one of {LOG_EVERY}"
    if carried:
        low, kept, high, gone = LOW_END_FRAC, "at half its cost", 1.0, "none of it"
    when = "at the start of each epoch or trial" if top in between else "after the optimizer's step"
    place = (epochs_place(between, ops, trees) if top in between else None) or top.at
    return Found(
        summary=(
            f"Work {when} takes {per_step(cost, budget.step_ns)}, most of it{where(top.at)} in"
            f" {top.leaf or top.at.function}.{_called_at(place, top.at)}"
        ),
        evidence=(
            *(frac(f"samples{where(line.at)}", line.self_frac, "sample") for line in lines[:3]),
            count("samples of the training thread", stacks.samples, "sample"),
        ),
        fix=_once(place) if top in between else _cheaper(top.at) if carried else _rarer(top.at),
        gain=Gain(
            0.0 if budget.has_device else least * budget.step_ns * low,
            at_most * budget.step_ns * high,
            f"low end: {'nothing' if budget.has_device else kept}; high end: {gone}."
            f" {sampling_range(stacks.samples, least, most)}.",
            ("other", "unattributed", "prepare"),
        ),
        at=place,
        cls="cpu" if carried else "",
    )


def _called_at(place: Place, top: Place) -> str:
    return "" if place == top else f" It is called{where(place)}."


def _rarer(place: Place) -> Fix:
    return Fix(
        f"Do the work{where(place)} every {LOG_EVERY} steps or once an epoch. If every step"
        " counts, keep its tensors and compute on many of them at once.",
        "review",
        action=f"Do the work after the step every {LOG_EVERY} steps",
        code=f"if step % {LOG_EVERY} == 0:\n    ...  # the work after the step",
    )


def _cheaper(place: Place) -> Fix:
    return Fix(
        f"Make the work{where(place)} cheaper: the next step needs it. Compute only what has"
        " changed since the last step, or let another process make it during the step.",
        "manual",
        action="Make the next step's input cheaper",
    )


def _once(place: Place) -> Fix:
    return Fix(
        f"The work{where(place)} is done at the start of each epoch or trial. Do it once, before"
        " the first, and keep the result.",
        "review",
        action="Do the work once, before the first epoch or trial",
        code="loader = make_loader()  # before the loop over epochs",
    )


def fires() -> Evidence:
    return _loop(62, budget(forward=6, backward=8, optimizer=2, other=11))


def clear() -> Evidence:
    """The same work above the forward makes the batch."""
    return _loop(55, budget(prepare=11, forward=6, backward=8, optimizer=2))


def _loop(line: int, step: Budget) -> Evidence:
    """A step from line 57 to 59; 40 % of the samples at ``line``."""
    calls = ops(
        op_line(57, "forward", 4, at=at(57, "train")),
        op_line(59, "optimizer", 4, at=at(59, "train")),
    )
    work = stack(line, 0.4, "confusion_matrix (metrics/_classification.py)", function="train")
    return Evidence().add(step, stacks((work, stack(57, 0.5, "", "forward"))), calls)
