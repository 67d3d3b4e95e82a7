"""Maps are made larger before a convolution of single pixels

## What it measures
`interpolate` whose result is at least eight times as large as its input, followed by a convolution
with a kernel of one pixel and fewer output than input channels. The time of the convolution, of the
enlarging, and of their backward.

## Why it is slow
A convolution of single pixels computes the same on the small map: each output pixel is a weighted
mean of input pixels, and the order of two linear steps does not matter. On the large map it takes
8 to 64 times the arithmetic, and all channels are enlarged instead of the few that are needed.

## What to do
Project first, enlarge then: `interpolate(project(x))` instead of `project(interpolate(x))`. A bias
may stay in the projection, because the weights of the interpolation add up to one.

## How the gain is computed
From the calls' time with their backward: low end the least and high end the most that such a change
saved in measurements. At the high end, if backward was not measured by line, theirs takes up to
four times as long as that of other calls.

## When this advice is wrong
If an activation or a norm lies between them: then the order matters.
"""

from __future__ import annotations

from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, where
from tdiag.rules.contracted import evidence_of, example, found_in
from tdiag.units import duration, percent

CODE = "TD735"
NAME = "enlarged-then-projected"
CLASS = "compute"
UNTRIED = "the expression must be rewritten"
BY_WORK = True

SMALL_LOW = Threshold(
    1.8,
    "times as fast",
    "Measured, projected before it is enlarged instead of after, three sizes with backward, torch"
    " 2.13, one core: the least (benchmarks/rule_constants.py td735).",
)
SMALL_HIGH = Threshold(
    87,
    "times as fast",
    "The same measurement: the most (benchmarks/rule_constants.py td735).",
)


def check(budget: Budget, phases: Phases, ops: Ops) -> Found | None:
    found = found_in(budget, phases, ops, "enlarged")
    if found is None:
        return None
    return Found(
        summary=(
            f"Maps are made larger before a convolution of single pixels{where(found.at)}:"
            f" {duration(found.ns)} per step with its backward"
            f" ({percent(found.ns / budget.step_ns)})."
        ),
        evidence=evidence_of(found),
        fix=Fix(
            f"Let the convolution{where(found.at)} come first, and enlarge its result: the numbers"
            " are the same up to rounding.",
            "review",
            action="Project before enlarging",
            code="y = interpolate(project(x), scale_factor=4, mode='bilinear')",
        ),
        gain=found.gain(SMALL_LOW, SMALL_HIGH),
        at=found.at,
    )


def fires() -> Evidence:
    return example("enlarged")


def clear() -> Evidence:
    return example("")
