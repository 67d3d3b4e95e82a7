"""Attention written out as matmul, softmax, matmul

## What it measures
Softmaxes with two batched matrix products for each, and no call of
`scaled_dot_product_attention`: the ops dispatched in a traced step.

## Why it is slow
The matrix of all scores is written to memory, read by the softmax, written and read again; for a
sequence of length n that is n² numbers per head. The fused form never stores it.

## What to do
Call `torch.nn.functional.scaled_dot_product_attention(q, k, v)` instead.

## How the gain is computed
On a CPU, from the time of these ops: the fused form was 1.03 to 1.2 times as fast where it was
tried. On a device the ops' host time says nothing of their kernels, so no gain is claimed there,
where it usually is larger, in time and in memory.

## When this advice is wrong
Attention weights that are looked at or changed after the softmax are not available from the fused
form.
"""

from __future__ import annotations

from tdiag.diagnose.model import Fix
from tdiag.evidence.device import HostOps, TracedSteps
from tdiag.evidence.kinds import Budget
from tdiag.evidence.store import Evidence
from tdiag.rules.base import Found, Gain
from tdiag.rules.examples import MS, budget, host_op, host_ops, traced
from tdiag.rules.measures import count, ns

CODE = "TD608"
NAME = "attention-written-out"
CLASS = "compute"

# Written out against fused, forward and backward, CPU, torch 2.13: 1.19× (sequence 64), 1.03×
# (256), 1.2× (1,024). 1 − 1 ÷ 1.2 = 0.17 and 1 − 1 ÷ 1.03 = 0.03 can go.
FUSED_HIGH_FRAC = 0.17
FUSED_LOW_FRAC = 0.03
# Scores and weighted values: two products for each softmax.
PRODUCTS_PER_SOFTMAX = 2
# The ops of attention written out, forward and backward, by torch's own names.
PARTS = ("aten::_softmax", "aten::_softmax_backward_data", "aten::bmm", "aten::baddbmm")


def check(budget: Budget, host_ops: HostOps, traced: TracedSteps) -> Found | None:
    counts = {op.name: op.count for op in host_ops.ops}
    softmaxes = counts.get("aten::_softmax", 0.0)
    products = counts.get("aten::bmm", 0.0) + counts.get("aten::baddbmm", 0.0)
    fused = any("scaled_dot_product" in name for name in counts)
    if not softmaxes or fused or products < PRODUCTS_PER_SOFTMAX * softmaxes:
        return None
    own = sum(op.self_ns for op in host_ops.ops if op.name in PARTS)
    cost = own * budget.step_ns / traced.mean_ns
    gain = Gain(
        cost * FUSED_LOW_FRAC,
        cost * FUSED_HIGH_FRAC,
        "the fused form took 1.03 to 1.2 times less where it was tried on a CPU.",
        ("forward", "backward"),
    )
    return Found(
        summary=(
            f"{softmaxes:.0f} softmaxes a step with {products:.0f} batched matrix products around"
            " them: attention is written out."
        ),
        evidence=(
            count("softmaxes", softmaxes, "trace", "per_step"),
            count("batched matrix products", products, "trace", "per_step"),
            ns("host time in these ops", own, "trace"),
        ),
        fix=Fix(
            "torch.nn.functional.scaled_dot_product_attention(q, k, v) in place of"
            " softmax(q @ k.T / sqrt(d)) @ v.",
            "review",
        ),
        gain=None if budget.has_device else gain,
    )


def fires() -> Evidence:
    parts = (host_op("aten::bmm", 36, 60 * MS), host_op("aten::_softmax", 6, 30 * MS))
    return Evidence().add(budget(forward=60, backward=90), host_ops(*parts), traced(150))


def clear() -> Evidence:
    """The fused call, which itself dispatches matrix products on a CPU."""
    fused = host_op("aten::scaled_dot_product_attention", 6, 90 * MS)
    parts = (fused, host_op("aten::bmm", 12, 60 * MS), host_op("aten::_softmax", 6, 30 * MS))
    return Evidence().add(budget(forward=60, backward=90), host_ops(*parts), traced(150))
