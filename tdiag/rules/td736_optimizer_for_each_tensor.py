"""There is an optimizer for each tensor

## What it measures
How many optimizers one line makes (at least: not all are described), and how many tensors each
updates; and the samples of the training thread in `torch.optim`: updates, schedules and deleted
gradients, also those within backward, where hooks call them.

## Why it is slow
Each `step()` costs tens of microseconds of Python before it computes anything, and a schedule for
each optimizer costs as much again. One optimizer for all tensors pays once, and updates them in a
few calls (`foreach`, `fused`).

## What to do
Make one optimizer with all parameters; groups (`{"params": …, "lr": …}`) give some of them other
settings. Optimizers that step in hooks of backward, to save the memory of the gradients: one for
each layer instead of one for each tensor, or one for all if memory allows.

## How the gain is computed
The share of the samples as time of the step. High end: one optimizer costs as much as one of these.
Low end: the least that one call for all tensors saved in measurements.

## When this advice is wrong
If the gradients of the whole model do not fit into memory at once.
"""

from __future__ import annotations

from collections import Counter

from tdiag.evidence.sampled import CallFrame, CallTrees, Stacks
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Optimizer, Optimizers
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import Found, Gain, count, frac, known_to, sampling_range, where
from tdiag.rules.examples import at, budget, stacks
from tdiag.rules.loop_lines import check_samples
from tdiag.rules.td702_optimizer_not_fused import updating_frac
from tdiag.rules.td710_optimizer_loops_over_tensors import FOREACH_LOW
from tdiag.units import percent, plural

CODE = "TD736"
NAME = "optimizer-for-each-tensor"
CLASS = "overhead"
UNTRIED = "the optimizers must be made as one"
BY_ISSUE = True

MIN_OPTIMIZERS = Threshold(
    12,
    "optimizers made at one line",
    "Heuristic: adversarial models and agents have two to five, one for each model.",
)


def check(budget: Budget, optimizers: Optimizers, stacks: Stacks, trees: CallTrees) -> Found | None:
    made = Counter(x.created_at for x in optimizers.optimizers)
    place, number = made.most_common(1)[0] if made else (None, 0)
    if number < MIN_OPTIMIZERS:
        return None
    check_samples(stacks)
    share = updating_frac(trees)
    least, most = known_to(share, stacks.samples)
    if least < NOTICEABLE_FRAC:
        return None
    each = sum(x.tensors for x in optimizers.optimizers if x.created_at == place) / number
    return Found(
        summary=(
            f"At least {number} optimizers{where(place)} update {plural(round(each), 'tensor')}"
            f" each. Their steps, schedules and zero_grad() take {percent(share)} of the training"
            " thread's time."
        ),
        evidence=(
            count("optimizers made there, at least", number, "probe"),
            count("tensors that each updates", each, "probe"),
            frac("samples in torch.optim", share, "sample"),
        ),
        fix=Fix(
            f"Make one optimizer with all parameters{where(place)}, in groups where settings"
            " differ. To save the memory of gradients, make one for each layer.",
            "review",
            action="Make one optimizer for all tensors",
            code="optimizer = torch.optim.AdamW(model.parameters(), lr=lr)",
        ),
        gain=Gain(
            least * budget.step_ns * (1 - 1 / FOREACH_LOW),
            most * budget.step_ns * (1 - 1 / number),
            f"high end: it costs as much as one of the {number}; low end: the least that one call"
            f" for all tensors saved in measurements;"
            f" {sampling_range(stacks.samples, least, most)}.",
            ("optimizer", "backward", "prepare", "other"),
        ),
        at=place,
    )


def fires() -> Evidence:
    """One for each of 364 tensors, stepped by hooks within backward."""
    return _updated(364)


def clear() -> Evidence:
    """A generator's and a critic's."""
    return _updated(2)


def _updated(number: int) -> Evidence:
    optim = "/opt/lib/torch/optim/optimizer.py"
    frames = (
        CallFrame(name="main", file=at(101).file, line=101, parent=-1, frac=1.0, user=True),
        CallFrame(name="update", file=at(71).file, line=71, parent=0, frac=0.6, user=True),
        CallFrame(name="wrapper", file=optim, line=0, parent=1, frac=0.55, user=False),
    )
    one = Optimizer(name="AdamW", created_at=at(66), tensors=1, config={})
    step = budget(forward=10, backward=80, optimizer=10)
    made = Optimizers(optimizers=(one,) * number)
    return Evidence().add(step, stacks(), made, CallTrees(training=frames, workers=()))
