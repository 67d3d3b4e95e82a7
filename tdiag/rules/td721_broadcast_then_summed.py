"""A large tensor is made by broadcasting and then summed

## What it measures
Products, differences and comparisons of two tensors whose result is at least eight times as large
as both, and that are summed over a dimension by a later call: `(x[:, :, None] * w).sum(1)`,
`(x[:, None] - y).pow(2).sum(-1)`. Several that are added before the sum count alike. A comparison
of all pairs counts if it selects among the values of one row, or is counted itself:
`torch.logsumexp(risk.expand(n, n).masked_fill(t < t[:, None], -inf), 1)`,
`(t[:, None] < t).sum(1)`. The time of these calls and of their backward.

## Why it is slow
The large tensor is written to memory and read again, forward and backward. A matrix product never
makes it and works in the processor's caches. All pairs of a batch are its square; sorting takes
little more than its length.

## What to do
Write a product that is summed as `x @ w` or `torch.einsum`, and differences that are squared and
summed as `torch.cdist(x, y).square()`. Instead of comparing all pairs sort once: then sums of
what is larger or smaller are `cumsum` or `logcumsumexp`, and counts are positions (`argsort` twice,
`searchsorted`).

## How the gain is computed
From the calls' time with their backward: low end the least and high end the most that a single call
saved in measurements with 65,536 (comparisons: 262,144) to 8 million elements. At the high end, if
backward was not measured by line, theirs takes up to four times as long as that of other calls.

## When this advice is wrong
If the large tensor is used elsewhere, too. Where values are equal, a cumulative sum needs care: all
of them belong to the sum. For distances of a point to itself the gradient of the
root is infinite: use the squared form.
"""

from __future__ import annotations

from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, Gain, count, ns, where
from tdiag.rules.contracted import contracted_ns
from tdiag.rules.examples import budget, op_line, ops, phases
from tdiag.units import duration, percent

CODE = "TD721"
NAME = "broadcast-then-summed"
CLASS = "compute"
UNTRIED = "the expression must be rewritten"
BY_WORK = True

CONTRACTED_LOW = Threshold(
    2,
    "times as fast",
    "Measured, one matrix product or cdist instead, with backward, torch 2.13, one core: the least,"
    " distances of 64 points of 64 numbers (benchmarks/rule_constants.py td721).",
)
CONTRACTED_HIGH = Threshold(
    86,
    "times as fast",
    "The same measurement: the most, distances of 256 points of 128 numbers"
    " (benchmarks/rule_constants.py td721).",
)
ONE_CALL = {
    "product": (
        "one matrix product",
        "result = x @ w  # or torch.einsum('bi,io->bo', x, w)",
    ),
    "difference": (
        "torch.cdist",
        "distances = torch.cdist(x, y).square()  # of all pairs",
    ),
    "comparison": (
        "a sort and a cumulative sum",
        "order = torch.argsort(times, descending=True)\n"
        "sums = torch.logcumsumexp(risk[order], 0)  # counts: torch.argsort(order)",
    ),
}


def check(budget: Budget, phases: Phases, ops: Ops) -> Found | None:
    lines = [line for line in ops.lines if line.contraction in ONE_CALL]
    if not lines:
        return None
    spent, most, share = contracted_ns(lines, phases, ops)
    total = sum(spent.values())
    if not total:
        return None
    worst = max(lines, key=lambda line: line.contracted_ns)
    instead, code = ONE_CALL[worst.contraction]
    return Found(
        summary=(
            f"A {worst.contraction} is broadcast to a large tensor{where(worst.at)} and summed:"
            f" {duration(total)} per step with its backward ({percent(total / budget.step_ns)})."
        ),
        evidence=(
            ns("broadcasting, summing, and their backward", total, "baseline"),
            count("torch calls of these lines", sum(line.calls for line in lines), "ops",
                  "per_step"),
        ),
        fix=Fix(
            f"Replace the {worst.contraction} and the sum{where(worst.at)} by {instead}.",
            "review",
            action=f"Use {instead} instead of broadcasting and summing",
            code=code,
        ),
        gain=Gain(
            total * (1 - 1 / CONTRACTED_LOW),
            most * (1 - 1 / CONTRACTED_HIGH),
            "low and high end: the least and the most that a single call saved in measurements;"
            f" high end: with {share.at_most}.",
            tuple(spent),
        ),
        at=worst.at,
    )  # fmt: skip


def fires() -> Evidence:
    return _layer(2.2e6)


def clear() -> Evidence:
    """A matrix product."""
    return _layer(0.0)


def _layer(contracted: float) -> Evidence:
    kind = "product" if contracted else ""
    mine = op_line(9, "forward", 3, grad_calls=3.0, elapsed_ns=2.3e6, contracted_ns=contracted,
                   contraction=kind)  # fmt: skip
    rest = op_line(10, "forward", 2, grad_calls=2.0, elapsed_ns=0.1e6)
    step = budget(forward=3.6, backward=3.5, optimizer=0.4)
    clean = phases(forward=3.6, backward=3.5, optimizer=0.4)
    return Evidence().add(step, clean, ops(mine, rest))
