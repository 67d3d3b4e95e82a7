"""Rows are picked by brackets, with gradients

## What it measures
Calls of `x[numbers]` or `x[:, numbers]` with one tensor of numbers, on values that record
gradients, and the operations of the backward that add their gradients up (`index_put`, from the
trace). Not with a device: there brackets sort the numbers, and add row by row. With 16,384 rows of
2,048 numbers a training step was 1.16 times as fast with brackets as with `index_select` (H200,
torch 2.11).

## Why it is slow
Brackets may name any elements in several dimensions at once, so the backward of `x[numbers]` adds
element by element. `index_select` names whole rows, which are added as such, if their gradients lie
one after the other in memory. Those of rows that `torch.cat` joins with others do not.

## What to do
`x.index_select(dim, numbers)`. `torch.nn.functional.embedding(numbers, table)` for the rows of a
table that are joined with others by `torch.cat`, and for numbers of more than one dimension. If the
rows are then added up or multiplied in pairs, look first whether a product or a sum over all rows
gives the same.

## How the gain is computed
From the time of these calls and of their backward. High end: as in the measurement of the
threshold. Low end: nothing, because joined rows gained little there (0.8 to 1.6 times as fast for
four tables).

## When this advice is wrong
Sums are added in another order, so results differ by rounding.
"""

from __future__ import annotations

from tdiag.evidence.roofline import OpWork, Work
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, Gain, count, held, ns, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.units import duration, percent

CODE = "TD749"
NAME = "rows-picked-by-brackets"
CLASS = "compute"
UNTRIED = "the pick must be written otherwise"

FASTER = Threshold(
    3.5,
    "times as fast",
    "Measured, brackets against index_select or embedding, with backward, eight shapes, joined with"
    " other rows or not, one core, torch 2.13: 0.8 to 3.5 (benchmarks/rule_constants.py td749).",
)
ADDS = "aten::_index_put_impl_"


def check(budget: Budget, phases: Phases, ops: Ops, work: Work | None) -> Found | None:
    if budget.has_device:
        return None
    part = part_of_calls(phases, ops, None, lambda x: x.indexed_ns)
    if part is None:
        return None
    picking, adding = part.ns, min(_adding(work), held(budget, "backward"))
    both = picking + adding
    if not both:
        return None
    most = part.lines[0]
    return Found(
        summary=(
            f"Brackets pick rows by their numbers{where(most.at)}: {duration(both)} with adding up"
            f" their gradients ({percent(both / budget.step_ns)} of the step)."
        ),
        evidence=(
            ns("picking rows", picking, "baseline"),
            ns("adding their gradients up", adding, "trace"),
            count("torch calls of these lines", part.calls, "ops", "per_step"),
        ),
        fix=Fix(
            f"Pick the rows{where(most.at)} by index_select, or by functional.embedding if cat"
            " joins them with others: the backward adds whole rows.",
            "review",
            action="Pick rows by index_select",
            code="rows = x.index_select(1, numbers)  # not x[:, numbers]",
        ),
        gain=Gain(
            0.0,
            both * (1 - 1 / FASTER),
            f"high end: picking and adding get {FASTER} times as fast; low end: nothing.",
            part.phases,
        ),
        at=most.at,
    )


def _adding(work: Work | None) -> float:
    """The backward's operations that add up the gradients of what brackets picked, ns per traced
    step."""
    ops = work.ops if work is not None else ()
    return sum(op.spent_ns for op in ops if op.backward and op.name == ADDS)


def fires() -> Evidence:
    """The ends of the edges of a graph."""
    return _graph(indexed=2e6)


def clear() -> Evidence:
    """The same by ``index_select``."""
    return _graph(indexed=0.0)


def _graph(indexed: float) -> Evidence:
    line = op_line(40, "forward", 2, grad_calls=2.0, elapsed_ns=2e6, indexed_ns=indexed, at=at(40))
    rest = op_line(44, "forward", 6, grad_calls=6.0, elapsed_ns=18e6)
    adding = OpWork(name=ADDS, dims=((3000, 64), (30000, 64)), dtype="float32", count=2.0,
                    flops=0.0, moved=1e7, host_ns=12e6, device_ns=None, backward=True)  # fmt: skip
    step = budget(forward=20, loss=2, backward=40, optimizer=3)
    clean = phases(forward=20, loss=2, backward=40, optimizer=3)
    return Evidence().add(step, clean, ops(line, rest), Work(ops=(adding,), calls=20.0))
