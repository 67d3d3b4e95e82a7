"""Gradients are filled with zeros

## What it measures
Calls of `zero_` in a traced step inside the optimizer's `zero_grad`, and their time. Where no
optimizer's `zero_grad` was called: as many of them as the optimizer has tensors.

## Why it is slow
Every gradient is written with zeros, and backward then reads it to add to it; without a gradient
there, backward just stores its result.

## What to do
`optimizer.zero_grad(set_to_none=True)`, torch's default since 2.0: remove `set_to_none=False`, or
calls of `p.grad.zero_()`.

## How the gain is computed
High end: the time of the zeroing and, as long again, of the adding. Low end: half of the zeroing;
with a device nothing, for it may hide what the host does.

## When this advice is wrong
Code that reads `p.grad` of parameters that got no gradient then finds None instead of zeros.
"""

from __future__ import annotations

from tdiag.evidence.device import HostOp, HostOps, TracedSteps
from tdiag.evidence.kinds import Budget, Optimizers
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain
from tdiag.rules.examples import MS, budget, host_op, host_ops, optimizers, traced
from tdiag.rules.measures import count, ns
from tdiag.units import duration, percent

CODE = "TD703"
NAME = "gradients-zeroed"
CLASS = "overhead"

# Both ways to zero gradients, by torch's own names (for each tensor; for a list of them).
ZEROING = ("aten::zero_", "aten::_foreach_zero_")
# Zeroing what the optimizer holds makes as many calls as it has tensors, less a few frozen ones;
# many more come from elsewhere (the backward of an index zeroes its result first).
ABOUT_AS_MANY = (0.9, 1.2)
# Reading and adding to a gradient moves at least the memory that zeroing it moves.
WITH_ADDING = 2.0
SAVING_LOW_FRAC = 0.5


def check(
    budget: Budget, host_ops: HostOps, optimizers: Optimizers, traced: TracedSteps
) -> Found | None:
    tensors = sum(optimizer.tensors for optimizer in optimizers.optimizers)
    zeroing = host_ops.zeroing or _by_their_number(host_ops, tensors)
    if not tensors or zeroing is None or not zeroing.count:
        return None
    cost = zeroing.total_ns * budget.step_ns / traced.mean_ns
    return Found(
        summary=(
            f"Gradients of {tensors} tensors are filled with zeros in each step:"
            f" {duration(cost)} ({percent(cost / budget.step_ns)})."
        ),
        evidence=(
            ns("filling with zeros", zeroing.total_ns, "trace"),
            count("calls of zero_", zeroing.count, "trace", "per_step"),
            count("parameter tensors", tensors, "probe"),
        ),
        fix=Fix("optimizer.zero_grad(set_to_none=True), torch's default.", "review", "set_to_none"),
        gain=Gain(
            0.0 if budget.has_device else cost * SAVING_LOW_FRAC,
            cost * WITH_ADDING,
            "high end: no zeroing, and backward stores where it now adds; low end: half of it, and"
            " nothing where a busy device hides what the host does.",
            ("optimizer", "loss", "prepare", "backward", "other", "launch", "unattributed"),
        ),
    )


def _by_their_number(host_ops: HostOps, tensors: int) -> HostOp | None:
    """Where no optimizer's own ``zero_grad`` was seen to do it, but perhaps the model's."""
    ops = {op.name: op for op in host_ops.ops if op.name in ZEROING}
    single = ops["aten::zero_"].count if "aten::zero_" in ops else 0.0
    fewest, most = (round(factor * tensors) for factor in ABOUT_AS_MANY)
    if not (fewest <= single <= most or "aten::_foreach_zero_" in ops):
        return None
    return max(ops.values(), key=lambda op: op.total_ns)


def fires() -> Evidence:
    zeroing = host_ops(host_op("aten::zero_", 60, 3 * MS))
    step = budget(forward=10, backward=20, optimizer=12, other=3)
    return Evidence().add(step, zeroing, optimizers("SGD"), traced(45))


def clear() -> Evidence:
    """A few buffers are zeroed, but not the gradients."""
    few = host_ops(host_op("aten::zero_", 4, 3 * MS))
    step = budget(forward=10, backward=20, optimizer=12, other=3)
    return Evidence().add(step, few, optimizers("SGD"), traced(45))
