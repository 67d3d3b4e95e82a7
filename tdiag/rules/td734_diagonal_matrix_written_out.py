"""A diagonal matrix is written out and used like any other

## What it measures
Matrices made by `torch.diag`, `diag_embed` or `diagflat` with at least 16,384 elements, and what
follows from them and is diagonal as well (scaled, inverted, its Cholesky factor). The time of
making them and of the calls that multiply with them, solve systems of them or decompose them, and
of their backward.

## Why it is slow
Of n × n elements n are not zero, but all are written, read and multiplied: a product with a
diagonal matrix takes n times the arithmetic of scaling rows. Systems and decompositions take more.
`MultivariateNormal` with a diagonal covariance decomposes it for each sample.

## What to do
Keep the diagonal as a vector. `torch.diag(v) @ w` is `v[:, None] * w`; `w @ torch.diag(v)` is
`w * v`; a system is a division, a determinant a product, a Cholesky factor a square root. Instead
of `MultivariateNormal(mean, torch.diag_embed(variance))` use
`Independent(Normal(mean, variance.sqrt()), 1)`.

## How the gain is computed
From the calls' time with their backward: low end the least and high end the most that such a change
saved in measurements. At the high end, if backward was not measured by line, theirs takes up to
four times as long as that of other calls.

## When this advice is wrong
If the matrix is small, or becomes full in the same expression and is used so elsewhere.
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

CODE = "TD734"
NAME = "diagonal-matrix-written-out"
CLASS = "compute"
UNTRIED = "the expression must be rewritten"
BY_WORK = True

DIAGONAL_LOW = Threshold(
    2.0,
    "times as fast",
    "Measured, by elements instead of with the matrix, six cases with backward, torch 2.13, one"
    " core: the least (benchmarks/rule_constants.py td734).",
)
DIAGONAL_HIGH = Threshold(
    68,
    "times as fast",
    "The same measurement: the most (benchmarks/rule_constants.py td734).",
)


def check(budget: Budget, phases: Phases, ops: Ops) -> Found | None:
    found = found_in(budget, phases, ops, "diagonal")
    if found is None:
        return None
    return Found(
        summary=(
            f"A diagonal matrix is used like a full one, most of it{where(found.at)}:"
            f" {duration(found.ns)} per step with its backward"
            f" ({percent(found.ns / budget.step_ns)})."
        ),
        evidence=evidence_of(found),
        fix=Fix(
            f"Keep the diagonal{where(found.at)} as a vector: scale rows or columns with it, divide"
            " by it instead of solving, and use Independent(Normal(...), 1) instead of"
            " MultivariateNormal.",
            "review",
            action="Keep the diagonal as a vector",
            code="y = v[:, None] * w  # instead of torch.diag(v) @ w",
        ),
        gain=found.gain(DIAGONAL_LOW, DIAGONAL_HIGH),
        at=found.at,
    )


def fires() -> Evidence:
    return example("diagonal")


def clear() -> Evidence:
    return example("")
