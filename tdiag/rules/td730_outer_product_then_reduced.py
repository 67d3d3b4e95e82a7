"""An outer product is written out and reduced again

## What it measures
Outer products (`torch.kron`, `torch.outer`, an `einsum` that sums nothing) whose result is at least
eight times as large as what it is made of, and that later calls reduce by a matrix product, an
`einsum` or a linear system. In between they may be reshaped, scaled, added to each other or
accumulated (`cumsum`), but nothing is computed of their single elements. The time of all these
calls and of their backward.

## Why it is slow
Every element of the large tensor is computed, written to memory and read again, although the result
depends only on the small ones. The product or the system that reduces it is as large.

## What to do
Multiply in another order, so that the large tensor is never made. Rows times `kron(a, b)`: reshape
each row to a matrix X and compute `a.T @ X @ b`. A running sum of outer products (linear
attention): go through blocks, in a block `(q @ k.T).tril() @ v`, and carry the sum from block to
block. A bilinear pooling: one `einsum` of both vectors and the weight. A Kronecker sum as a linear
system (Sylvester, Lyapunov): use the eigenvectors of the small matrices.

## How the gain is computed
From the calls' time with their backward: low end the least and high end the most that such a change
saved in measurements with 65,536 to 1 million elements. At the high end, if backward was not
measured by line, theirs takes up to four times as long as that of other calls.

## When this advice is wrong
If the large tensor is used elsewhere, too. If the factors have few rows beside it: then one large
product may be as fast as several small ones.
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

CODE = "TD730"
NAME = "outer-product-then-reduced"
CLASS = "compute"
UNTRIED = "the expression must be rewritten"
BY_WORK = True

OUTER_LOW = Threshold(
    1.4,
    "times as fast",
    "Measured, ten products in another order, with backward, torch 2.13, one core: the least, 512"
    " rows times the Kronecker product of two 16 × 16 (benchmarks/rule_constants.py td730).",
)
OUTER_HIGH = Threshold(
    26,
    "times as fast",
    "The same measurement: the most, a running sum of 512 outer products of 64 numbers"
    " (benchmarks/rule_constants.py td730).",
)


def check(budget: Budget, phases: Phases, ops: Ops) -> Found | None:
    found = found_in(budget, phases, ops, "outer")
    if found is None:
        return None
    return Found(
        summary=(
            f"An outer product is written out and reduced again, most of it{where(found.at)}:"
            f" {duration(found.ns)} per step with its backward"
            f" ({percent(found.ns / budget.step_ns)})."
        ),
        evidence=evidence_of(found),
        fix=Fix(
            f"Multiply in another order, so that the outer product{where(found.at)} is never made:"
            " first the factor that the result needs, then the other. Accumulated ones: in blocks.",
            "review",
            action="Multiply in another order than by the outer product",
            code="# x @ torch.kron(a, b)\n"
            "y = torch.einsum('tij,ik,jl->tkl', x.unflatten(1, (len(a), len(b))), a, b).flatten(1)",
        ),
        gain=found.gain(OUTER_LOW, OUTER_HIGH),
        at=found.at,
    )


def fires() -> Evidence:
    return example("outer")


def clear() -> Evidence:
    return example("")
