"""Gradients are filled with zeros

## What it measures
Calls of `zero_` in a traced step inside the optimizer's `zero_grad`, and their time. If no
optimizer's `zero_grad` was called: about as many `zero_` calls as the optimizer has tensors.

## Why it is slow
Every gradient is written with zeros, and backward then reads it to add to it. Without an old
gradient, backward just stores its result.

## What to do
Call `optimizer.zero_grad(set_to_none=True)`, torch's default since 2.0: remove `set_to_none=False`
or calls of `p.grad.zero_()`.

## How the gain is computed
High end: the time of zeroing, and as much again for adding. Low end: half of the zeroing; with a
device nothing, because device work may hide it.

## When this advice is wrong
Code that reads `p.grad` of parameters without a gradient then finds None instead of zeros.
"""

from __future__ import annotations

from tdiag.evidence.steps import Budget, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import HostOp, HostOps, OpLine, Ops
from tdiag.evidence.training import Optimizers
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import Found, Gain, count, ns, where
from tdiag.rules.examples import (
    MS,
    budget,
    host_op,
    host_ops,
    op_line,
    ops,
    optimizers,
    traced,
)
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import per_step

CODE = "TD703"
NAME = "gradients-zeroed"
CLASS = "overhead"

# Both ways to zero gradients, by torch's names (one tensor; a list of tensors).
ZEROING = ("aten::zero_", "aten::_foreach_zero_")
# The same as calls of torch by a line of Python.
ZEROING_CALLS = ("zero_", "_foreach_zero_")
FEWEST_CALLS = Threshold(
    0.9, "calls per tensor", "Heuristic: a few tensors may be frozen and have no gradient to zero."
)
MOST_CALLS = Threshold(
    1.2,
    "calls per tensor",
    "Heuristic: many more calls come from elsewhere (the backward of an index zeroes its result"
    " first).",
)
WITH_ADDING = Threshold(
    2.0,
    "times the zeroing",
    "By arithmetic: reading and adding to a gradient moves at least the memory that zeroing it"
    " moves.",
)


def check(
    budget: Budget,
    host_ops: HostOps,
    optimizers: Optimizers,
    traced: TracedSteps,
    ops: Ops | None,
) -> Found | None:
    tensors = sum(optimizer.tensors for optimizer in optimizers.optimizers)
    zeroing = host_ops.zeroing or _by_their_number(host_ops, tensors)
    if not tensors or zeroing is None or not zeroing.count:
        return None
    lines = [line for line in ops.lines if _zeroes(line)] if ops else []
    at = max(lines, key=lambda line: line.elapsed_ns).at if lines else None
    cost = zeroing.total_ns * budget.step_ns / traced.mean_ns
    return Found(
        summary=(
            f"Filling the gradients of {tensors} tensors with zeros{where(at)} takes"
            f" {per_step(cost, budget.step_ns)}."
        ),
        evidence=(
            ns("filling with zeros", zeroing.total_ns, "trace"),
            count("calls of zero_", zeroing.count, "trace", "per_step"),
            count("parameter tensors", tensors, "probe"),
        ),
        fix=Fix(
            f"Let zero_grad() drop the gradients{where(at)}, torch's default, instead of zeroing"
            " them.",
            "review",
            "optimizer.zero_grad=set_to_none",
            action="Drop gradients instead of zeroing them",
            code="optimizer.zero_grad(set_to_none=True)",
        ),
        gain=Gain(
            0.0 if budget.has_device else cost * LOW_END_FRAC,
            cost * WITH_ADDING,
            "high end: no zeroing, and backward stores instead of adding; low end: half of the"
            " zeroing, or nothing if device work hides it.",
            ("optimizer", "loss", "prepare", "backward", "other", "launch", "unattributed"),
        ),
        at=at,
    )


def _zeroes(line: OpLine) -> bool:
    """Whether most calls of the line fill with zeros."""
    zeroing = sum(line.names.get(name, 0.0) for name in ZEROING_CALLS)
    return zeroing > MAJORITY_FRAC * sum(line.names.values())


def _by_their_number(host_ops: HostOps, tensors: int) -> HostOp | None:
    """The zeroing if no optimizer's ``zero_grad`` was seen; perhaps ``model.zero_grad`` does it."""
    ops = {op.name: op for op in host_ops.ops if op.name in ZEROING}
    single = ops["aten::zero_"].count if "aten::zero_" in ops else 0.0
    fewest, most = round(FEWEST_CALLS * tensors), round(MOST_CALLS * tensors)
    if not (fewest <= single <= most or "aten::_foreach_zero_" in ops):
        return None
    return max(ops.values(), key=lambda op: op.total_ns)


def fires() -> Evidence:
    zeroing = host_ops(host_op("aten::zero_", 60, 3 * MS))
    step = budget(forward=10, backward=20, optimizer=12, other=3)
    line = op_line(58, "prepare", 60, names={"zero_": 60.0})
    return Evidence().add(step, zeroing, optimizers("SGD"), traced(45), ops(line))


def clear() -> Evidence:
    """A few buffers are zeroed, but not the gradients."""
    few = host_ops(host_op("aten::zero_", 4, 3 * MS))
    step = budget(forward=10, backward=20, optimizer=12, other=3)
    return Evidence().add(step, few, optimizers("SGD"), traced(45))
