"""The step computes from the batch alone

## What it measures
Calls in the forward pass and in the loss whose result depends neither on a weight nor on random
numbers: features, neighbours, distances, targets, masks made of the batch. Results are followed
from call to call in the counted steps; calls on constants are TD720's.

## Why it is slow
No weight takes part, so this need not wait for the training, nor the training for it. And if a
sample comes unchanged in every epoch, the result is the same each time.

## What to do
Compute it where the sample is made: once for the whole data set if that does not change, otherwise
in the dataset or its `collate_fn`, which workers run beside the training.

## How the gain is computed
The time of each phase × these calls' share of the time of its calls. High end: all of it. Low end,
if the samples do not change: nine tenths of it, from the second epoch on, as twins saved that keep
what an epoch makes; otherwise nothing, because the work is only moved.

## When this advice is wrong
If the samples are augmented at random in the step before it, or if its result is much larger than
the sample: then storing or sending it costs more than computing it.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import Startup
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases, StepHistory
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, count, ns, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.rules.feed import REPEATED_LOW_FRAC, one_epoch
from tdiag.units import duration, percent

CODE = "TD223"
NAME = "batch-work-in-the-step"
CLASS = "compute"
UNTRIED = "the work must be moved to where samples are made; `--freeze` of its function bounds it"
AFTER = {
    "TD501": "a loop over the batch's values may be one expression",
    "TD758": "a copy that is only read need not be made at all",
}
PHASES = ("forward", "loss")


def check(
    budget: Budget,
    phases: Phases,
    ops: Ops,
    stacks: Stacks | None,
    loaders: Loaders | None,
    history: StepHistory | None,
    startup: Startup | None,
) -> Found | None:
    if budget.has_device:
        return None  # the host's clock does not show the calls' time on a device
    part = part_of_calls(phases, ops, stacks, lambda x: x.of_batch_ns, PHASES)
    if part is None:
        return None
    total, worst = part.ns, part.lines[0]
    loader = loaders.train() if loaders else None
    same = loader is not None and loader.random is False and bool(loader.dataset_len)
    again = same and not one_epoch(history, startup)
    place = "in the dataset" if loader else "before the training"
    return Found(
        summary=(
            f"Calls in the step that use the batch alone, no weight, take {duration(total)}"
            f" ({percent(total / budget.step_ns)}), most of it{where(worst.at)} in"
            f" {worst.at.function}."
        ),
        evidence=(
            ns("calls on the batch alone", total, "baseline"),
            count("torch calls of these lines", part.calls, "ops", "per_step"),
        ),
        fix=Fix(
            f"Compute what is made of the batch alone{where(worst.at)} {place}: once for each"
            " sample if it does not change, otherwise in loader workers, beside the training.",
            "manual",
            action="Move work on the batch alone out of the step",
        ),
        gain=Gain(
            total * REPEATED_LOW_FRAC if again else 0.0,
            total,
            f"high end: all of the {duration(total)}; low end: "
            + (
                f"{percent(REPEATED_LOW_FRAC)}, from the second epoch on."
                if again
                else "nothing, if it is only moved."
            ),
            tuple(part.spent),
        ),
        at=worst.at,
    )


def fires() -> Evidence:
    """Neighbours of points, searched in the model's forward."""
    return _searching(of_batch=18e6)


def clear() -> Evidence:
    """Neighbours in a space of features, which the weights make."""
    return _searching(of_batch=0.0)


def _searching(of_batch: float) -> Evidence:
    search = op_line(
        20, "forward", 300, elapsed_ns=18e6, of_batch_ns=of_batch, at=at(20, "neighbours")
    )
    rest = op_line(24, "forward", 30, elapsed_ns=22e6)
    step = budget(forward=40, backward=50, optimizer=5)
    return Evidence().add(step, phases(forward=40, backward=50, optimizer=5), ops(search, rest))
