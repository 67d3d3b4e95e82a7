"""A matrix of weights is copied for each row

## What it measures
Calls that pick matrices from weights by an index (`W[kind]`, `index_select`), at least four times
as many as there are, and the products that use them: their time, and how many are picked. Weights
are parameters and what is computed from parameters alone.

## Why it is slow
A row of 32 numbers is multiplied with a matrix of 32 × 32 of its own: the copies take 32 times the
memory of the rows. They are written, read once, and backward writes a gradient as large and adds it
up again. Products of one row each reach a small part of what a processor can do.

## What to do
Multiply all rows with each of the matrices, and pick from the results (`(h @ W)[kind, row]` for a
`W` of kinds × in × out): best where each row is used with several matrices, as nodes of a graph
are. Or sort the rows by their matrix, and multiply each group at once, a call for each matrix.

## How the gain is computed
From the time of these calls and of their backward: low end the least and high end the most that
the faster of the two ways saved in measurements.

## When this advice is wrong
If nearly every row has a matrix of its own, or if one matrix is needed in full for few rows.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops, PickedWeights
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, count, ns, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.units import count as counted
from tdiag.units import duration, percent

CODE = "TD745"
NAME = "weights-gathered"
CLASS = "compute"
UNTRIED = "the product must be rewritten"
BY_WORK = True

_MEASURED = (
    "Measured, 8,192 products of rows of 16 to 64 numbers with 4 to 64 matrices, with backward,"
    " torch 2.13, two cores, against the faster of the two ways:"
)
FASTER_LOW = Threshold(
    2.7, "times as fast", f"{_MEASURED} the least (benchmarks/rule_constants.py td745)."
)
FASTER_HIGH = Threshold(
    51, "times as fast", f"{_MEASURED} the most (benchmarks/rule_constants.py td745)."
)


def check(budget: Budget, phases: Phases, ops: Ops, stacks: Stacks | None) -> Found | None:
    if not ops.gathered:
        return None
    part = part_of_calls(phases, ops, stacks, lambda x: x.gathered_ns + x.gathered_used_ns)
    if part is None:
        return None
    whole = part.ns + part.backward_ns
    most = max(ops.gathered, key=lambda x: x.picked)
    return Found(
        summary=(
            f"{counted(most.picked)} copies of {counted(most.weights)} matrices of weights are made"
            f"{where(most.at)}, and each is multiplied with a row: {duration(whole)} per step"
            f" ({percent(whole / budget.step_ns)}) with their backward."
        ),
        evidence=(
            count("matrices picked, at most", most.picked, "ops"),
            count("matrices there", most.weights, "ops"),
            ns("picking them and their products", part.ns, "baseline"),
            ns("their backward", part.backward_ns, "baseline"),
        ),
        fix=Fix(
            f"Multiply all rows with each of the {counted(most.weights)} matrices{where(most.at)},"
            " and pick from the results; or sort the rows by their matrix, and multiply each group"
            " at once.",
            "review",
            action="Pick from the products, not from the weights",
            code="products = h @ W  # kinds × rows × out\n"
            "messages = products[kind, source]  # not torch.bmm(h[source, None], W[kind])",
        ),
        gain=part.gain_times_as_fast(FASTER_LOW, FASTER_HIGH),
        at=most.at,
    )


def fires() -> Evidence:
    """A graph of 12,000 edges of 12 kinds."""
    return _of(PickedWeights(at=at(50, "forward"), picked=12_000, weights=12), picking=24e6)


def clear() -> Evidence:
    return _of(None, picking=0.0)


def _of(found: PickedWeights | None, picking: float) -> Evidence:
    line = op_line(
        50, "forward", 6, grad_calls=6.0, elapsed_ns=30e6, gathered_ns=picking,
        gathered_used_ns=picking / 6, at=at(50, "forward"),
    )  # fmt: skip
    rest = op_line(60, "forward", 60, grad_calls=60.0, elapsed_ns=10e6)
    step = budget(forward=40, backward=66, optimizer=2)
    kept = replace(ops(line, rest), gathered=(found,) if found else ())
    return Evidence().add(step, phases(forward=40, backward=66, optimizer=2), kept)
