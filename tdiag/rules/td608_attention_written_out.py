"""Attention written out as matmul, softmax, matmul

## What it measures
Softmaxes of a matrix product whose result is multiplied with a further matrix, followed from call
to call in counted steps, and the time of such ops in a traced step. Scores that are no product (a
graph network's sums), or whose softmax weights nothing (contrastive losses), are not counted.

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
form. A bare trace does not tell what a softmax was taken of: there the rule abstains.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.device import HostOps, TracedSteps
from tdiag.evidence.kinds import Attention, Budget, Ops
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, Gain, where
from tdiag.rules.examples import MS, at, budget, host_op, host_ops, ops, traced
from tdiag.rules.measures import count, ns

CODE = "TD608"
NAME = "attention-written-out"
CLASS = "compute"

# Written out against fused, forward and backward, CPU, torch 2.13: 1.19× (sequence 64), 1.03×
# (256), 1.2× (1,024). 1 − 1 ÷ 1.2 = 0.17 and 1 − 1 ÷ 1.03 = 0.03 can go.
FUSED_HIGH_FRAC = 0.17
FUSED_LOW_FRAC = 0.03
# The ops of attention written out, forward and backward, by torch's own names.
PARTS = ("aten::_softmax", "aten::_softmax_backward_data", "aten::bmm", "aten::baddbmm")


def check(budget: Budget, ops: Ops, host_ops: HostOps, traced: TracedSteps) -> Found | None:
    if ops.attention is None:
        raise Abstain("tensors were not followed from product to product")
    written = sum(x.per_step for x in ops.attention)
    counts = {op.name: op.count for op in host_ops.ops}
    if not written or any("scaled_dot_product" in name for name in counts):
        return None
    place = max(ops.attention, key=lambda x: x.per_step).at
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
            f"Attention is written out {written:.0f} times a step{where(place)}: a product, its"
            " softmax, and its product with the values."
        ),
        evidence=(
            count("products whose softmax weights values", written, "ops", "per_step"),
            ns("host time in these ops", own, "trace"),
        ),
        fix=Fix(
            "torch.nn.functional.scaled_dot_product_attention(q, k, v) in place of"
            f" softmax(q @ k.T / sqrt(d)) @ v{where(place)}.",
            "review",
        ),
        gain=None if budget.has_device else gain,
        at=place,
    )


def fires() -> Evidence:
    return _attending(6.0)


def clear() -> Evidence:
    """As many softmaxes and products, but the scores are no product: a graph network."""
    return _attending(0.0)


def _attending(times: float) -> Evidence:
    parts = (host_op("aten::bmm", 36, 60 * MS), host_op("aten::_softmax", 6, 30 * MS))
    seen = (Attention(at=at(18, "forward"), per_step=times),) if times else ()
    return Evidence().add(
        budget(forward=60, backward=90),
        host_ops(*parts),
        traced(150),
        replace(ops(), attention=seen),
    )
