"""A low-rank product is written out as a full weight

## What it measures
Products of two parameters whose inner side is at most an eighth of both outer ones (`B @ A` of
LoRA, a factored layer) and that are used as the weight of a layer, perhaps scaled and added to
another matrix: their time, and that of the layers' products.

## Why it is slow
The product is as large as the full weight and made again in every step. Worse, backward computes a
gradient as large for it, from all rows of the batch, as if the full weight were trained.

## What to do
Apply the factors in turn: `F.linear(x, W) + (x @ A.T) @ B.T * scale`. The frozen weight then needs
no gradient. Merge them only for inference.

## How the gain is computed
High end: the time of writing it out, its backward (up to four times its share, if backward was not
measured by line), and a gradient of the full weight, which costs as much as the layers' product;
low end: half of that.

## When this advice is wrong
If few rows go through a wide factor: with more rows than the weight has columns, and a rank near
the eighth, the two small products may cost more than the large one did.
"""

from __future__ import annotations

from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, ns, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import duration, percent

CODE = "TD741"
NAME = "low-rank-written-out"
CLASS = "compute"
UNTRIED = "the layer must be rewritten"
BY_WORK = True


def check(budget: Budget, phases: Phases, ops: Ops, stacks: Stacks | None) -> Found | None:
    part = part_of_calls(phases, ops, stacks, lambda x: x.low_rank_ns)
    if part is None:
        return None
    layers = part_of_calls(phases, ops, stacks, lambda x: x.low_rank_used_ns)
    products = layers.ns if layers else 0.0
    gradient = min(products, part.all_backward_ns)
    worst = part.lines[0].at
    return Found(
        summary=(
            f"A low-rank product of parameters is written out{where(worst)} in {worst.function} and"
            f" used as a weight: {duration(part.ns)} per step"
            f" ({percent(part.ns / budget.step_ns)}), and a gradient of the full weight, about"
            f" {duration(gradient)}."
        ),
        evidence=(
            ns("writing it out", part.ns, "baseline"),
            ns("products with it as a weight", products, "baseline"),
            ns("backward of writing it out", part.backward_ns, "baseline"),
        ),
        fix=Fix(
            f"Apply the two factors to the layer's input, one after the other{where(worst)},"
            " instead of multiplying them with each other.",
            "review",
            action="Apply the factors in turn",
            code="y = F.linear(x, W) + scale * (x @ A.T) @ B.T"
            "  # not F.linear(x, W + scale * B @ A)",
        ),
        gain=Gain(
            (part.ns + part.least_backward_ns + gradient) * LOW_END_FRAC,
            part.ns + min(part.all_backward_ns, part.most_backward_ns + gradient),
            f"high end: the {duration(part.ns)}, with {part.share.at_most}, and a gradient of the"
            " full weight; low end: half of that.",
            part.phases,
        ),
        at=worst,
    )


def fires() -> Evidence:
    """LoRA of rank 8 on weights of 512 × 512, merged in every forward."""
    return _adapted(low_rank=9e6)


def clear() -> Evidence:
    """The factors applied to the input."""
    return _adapted(low_rank=0.0)


def _adapted(low_rank: float) -> Evidence:
    made = op_line(
        54,
        "forward",
        36,
        grad_calls=36.0,
        elapsed_ns=21e6,
        low_rank_ns=low_rank,
        low_rank_used_ns=low_rank * 1.2,
        at=at(54, "forward"),
    )
    rest = op_line(60, "forward", 60, grad_calls=60.0, elapsed_ns=19e6)
    step = budget(forward=40, backward=66, optimizer=2)
    return Evidence().add(step, phases(forward=40, backward=66, optimizer=2), ops(made, rest))
