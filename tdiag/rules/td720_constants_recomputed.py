"""The same constant is computed in every step

## What it measures
Calls before and in the forward pass and in the loss that take only constants: buffers, frozen
weights, tensors that were passed unchanged in the previous step, and results of the same calls with
the same numbers on these. Calls of one counted step are compared with those of an earlier one.

## Why it is slow
A mask, a positional encoding or a normalised adjacency matrix is the same in every step. It is
computed again each time, although once is enough.

## What to do
Compute it once, where the module is made, and keep it as a buffer (`register_buffer`).

## How the gain is computed
The time of each phase × these calls' share of the time of its calls. High end: all of it. Low end:
three quarters, because some of the calls may have to stay.

## When this advice is wrong
If the result depends on the size of the batch or of the sequence, and that changes during training:
keep one result for each size, or cut it from the largest.
"""

from __future__ import annotations

from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.rules.base import Found, Gain, count, ns, same_function, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.callers import caller_of
from tdiag.rules.examples import budget, op_line, ops, phases
from tdiag.rules.thresholds import RARER_LOW_FRAC
from tdiag.units import duration, percent

CODE = "TD720"
NAME = "constants-recomputed"
CLASS = "compute"
AFTER = {"TD229": "the function around it need not run in each step"}
UNTRIED = "the value must be computed where the module is made"
BY_WORK = True


def check(
    budget: Budget, phases: Phases, ops: Ops, stacks: Stacks | None, trees: CallTrees | None
) -> Found | None:
    part = part_of_calls(phases, ops, stacks, lambda x: x.constant_ns)
    if part is None:
        return None
    total, worst = part.ns, part.lines[0]
    beside = [x for x in ops.lines if same_function(x.at, worst.at)]
    # A function of constants alone: its caller can keep the result.
    of_function = sum(x.elapsed_ns for x in beside)
    whole = sum(x.constant_ns for x in beside) >= (1 - NOTICEABLE_FRAC) * of_function
    called_at = caller_of(worst.at, trees) if whole else None
    place = called_at or worst.at
    called = f" {worst.at.function} is called{where(called_at)}." if called_at else ""
    return Found(
        summary=(
            f"Calls on constants alone take {duration(total)} per step"
            f" ({percent(total / budget.step_ns)}), most of it{where(worst.at)}. Their result is"
            f" the same in every step.{called}"
        ),
        evidence=(
            ns("calls on constants alone", total, "baseline"),
            count("torch calls of these lines", part.calls, "ops", "per_step"),
        ),
        fix=Fix(
            f"Compute what is made of constants{where(place)} once, where the module is made,"
            " and keep it as a buffer.",
            "review",
            action="Compute the constant once",
            code='self.register_buffer("constant", value, persistent=False)  # in __init__',
        ),
        gain=Gain(
            total * RARER_LOW_FRAC,
            total,
            f"high end: all of the {duration(total)}; low end: three quarters of it.",
            tuple(part.spent),
            calls_go=True,
        ),
        at=place,
    )


def fires() -> Evidence:
    """A mask of 2,048 × 2,048 in each step."""
    return _masked(constant=9e6)


def clear() -> Evidence:
    """The mask is a buffer."""
    return _masked(constant=0.0)


def _masked(constant: float) -> Evidence:
    mask = op_line(20, "forward", 3, elapsed_ns=9e6, constant_ns=constant)
    rest = op_line(24, "forward", 30, elapsed_ns=31e6)
    step = budget(forward=40, backward=80, optimizer=5)
    clean = phases(forward=40, backward=80, optimizer=5)
    return Evidence().add(step, clean, ops(mask, rest))
