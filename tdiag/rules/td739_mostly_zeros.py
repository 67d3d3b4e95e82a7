"""Nearly all that is multiplied is zero

## What it measures
Products of matrices (`@`, `matmul`, `mm`, `bmm`, `linear`, `einsum`) of which one operand, that is
not learned, has at most 2 % of elements that are not zero: their time, and that share. Read while
torch calls are counted; from a device afterwards, if the tensor still exists. What `one_hot` makes
is known.

## Why it is slow
A dense product multiplies every zero and reads it from memory. The adjacency matrix of a graph with
ten neighbours a node, or classes as one-hot vectors, are a hundred to a thousand times as large as
what they say.

## What to do
One-hot vectors: keep the class numbers, and look the rows up (`nn.Embedding`,
`functional.embedding(ids, weight)`). Rows sent to experts by a one-hot matrix: pick them
(`x.index_select(0, rows)`), and add the experts' results up where they belong
(`out.index_add(0, rows, results)`).
Adjacency and other fixed matrices: make them sparse once (`adjacency.to_sparse_csr()`), and
multiply as before; or sum over edges (`out.index_add(0, target, x.index_select(0, source))`).
Brackets (`x[source]`) have a backward that may take as long as the dense product.

## How the gain is computed
A sparse product of such a matrix took 8 to 61 times as long, backward included, as the share that
is not zero of the dense one's time. High end: with the least of these, and, if backward was not
measured by line, theirs takes four times as long as that of other calls; low end: with the most,
and a quarter as long. With a device, low end: nothing, because its units for dense products may
make up for the zeros; a product with a one-hot matrix of 16,384 columns took three quarters of a
step, and looking the rows up made the step 3.1 times as fast (H200, torch 2.11).

## When this advice is wrong
If the zeros change from step to step and finding them takes as long. Sparse products have fewer
data types, and no autocast.
"""

from __future__ import annotations

from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, frac, ns, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.units import duration, percent

CODE = "TD739"
NAME = "mostly-zeros"
CLASS = "compute"
UNTRIED = "the matrix must be made in another form"
BY_WORK = True

_MEASURED = (
    "Measured with torch 2.13, one core, backward included: a sparse (CSR, COO) product, per share"
    " of elements that are not zero, of the dense one's time; 512 to 6,000 rows, 16 to 256 columns,"
    " 0.2 to 2 % not zero:"
)
SPARSE_LOW = Threshold(
    8, "times as long", f"{_MEASURED} the least (benchmarks/rule_constants.py td739)."
)
SPARSE_HIGH = Threshold(
    61, "times as long", f"{_MEASURED} the most (benchmarks/rule_constants.py td739)."
)


def check(budget: Budget, phases: Phases, ops: Ops, stacks: Stacks | None) -> Found | None:
    part = part_of_calls(phases, ops, stacks, lambda x: x.mostly_zero_ns)
    if part is None:
        return None
    left = sum(x.nonzero_ns for x in part.lines) / sum(x.mostly_zero_ns for x in part.lines)
    low, high = (max(0.0, 1 - times * left) for times in (SPARSE_HIGH, SPARSE_LOW))
    if budget.has_device:
        low = 0.0
    worst = part.lines[0]
    return Found(
        summary=(
            f"All but {percent(left)} of a matrix that is multiplied{where(worst.at)} is zero. Its"
            f" products take {duration(part.ns)} per step ({percent(part.ns / budget.step_ns)}),"
            " without their backward."
        ),
        evidence=(
            frac("elements that are not zero", left, "ops"),
            ns("products of such matrices", part.ns, "baseline"),
            ns("their backward", part.backward_ns, "baseline"),
        ),
        fix=Fix(
            f"Look rows up by index instead of multiplying by one-hot vectors{where(worst.at)}, and"
            " add them up with index_add; or make a fixed matrix sparse once, before training.",
            "review",
            action="Do not multiply zeros",
            code="adjacency = adjacency.to_sparse_csr()  # once; then adjacency @ x\n"
            "y = F.embedding(ids, weight)  # not F.one_hot(ids, n).float() @ weight",
        ),
        gain=part.gain_if_less(
            low,
            high,
            f"a sparse product takes {SPARSE_LOW} to {SPARSE_HIGH} times the share that is not zero"
            f" of this time{' (low end: as long)' if budget.has_device else ''}",
        ),
        at=worst.at,
    )


def fires() -> Evidence:
    """A graph of 3,000 nodes with eight neighbours each."""
    return _graph(mostly_zero=30e6)


def clear() -> Evidence:
    """The same graph, sparse."""
    return _graph(mostly_zero=0.0)


def _graph(mostly_zero: float) -> Evidence:
    product = op_line(
        31,
        "forward",
        2,
        grad_calls=2.0,
        elapsed_ns=31e6,
        mostly_zero_ns=mostly_zero,
        nonzero_ns=mostly_zero * 0.0027,
        at=at(31, "forward"),
    )
    rest = op_line(33, "forward", 8, grad_calls=8.0, elapsed_ns=9e6)
    step = budget(forward=40, backward=45, optimizer=5)
    clean = phases(forward=40, backward=45, optimizer=5)
    return Evidence().add(step, clean, ops(product, rest))
