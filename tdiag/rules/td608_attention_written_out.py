"""Attention written as matmul, softmax, matmul

## What it measures
Softmaxes of a matrix product whose result is multiplied with another matrix, followed from call to
call in counted steps, and the time of these ops in a traced step. Scores that are not a product (a
graph network's sums) and softmaxes that weight nothing (contrastive losses) do not count.

## Why it is slow
The score matrix (n² numbers per head for a sequence of length n) is written to memory, read by the
softmax, and written and read again. The fused form never stores it.

## What to do
Call `torch.nn.functional.scaled_dot_product_attention(q, k, v)` instead.

## How the gain is computed
On a CPU, from the time of these ops: the fused form was 1.03 to 1.2 times as fast in measurements.
On a device no gain is claimed, because host times say nothing about kernels; the gain in time and
memory is usually larger there.

## When this advice is wrong
The fused form does not return attention weights, so code that reads or changes them after the
softmax needs the written form. A bare trace does not show what a softmax is taken of: the rule
abstains there.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.ops import Attention, HostOps, Ops
from tdiag.evidence.steps import Budget, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Abstain, Found, Gain, where
from tdiag.rules.examples import MS, at, budget, host_op, host_ops, ops, traced
from tdiag.rules.measures import count, ns

CODE = "TD608"
NAME = "attention-written-out"
CLASS = "compute"

FUSED_HIGH_FRAC = Threshold(
    0.17,
    "of the time",
    "Measured, written out against fused, forward and backward, CPU, torch 2.13: 1.2× at sequence"
    " length 1,024 and 1.19× at 64; 1 − 1 ÷ 1.2 = 0.17.",
)
FUSED_LOW_FRAC = Threshold(
    0.03, "of the time", "The same measurement: 1.03× at sequence length 256; 1 − 1 ÷ 1.03 = 0.03."
)
# The ops of attention written out, forward and backward, by torch's own names.
PARTS = ("aten::_softmax", "aten::_softmax_backward_data", "aten::bmm", "aten::baddbmm")


def check(budget: Budget, ops: Ops, host_ops: HostOps, traced: TracedSteps) -> Found | None:
    if ops.attention is None:
        raise Abstain("tensors were not followed from one matrix product to the next")
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
        "the fused form was 1.03 to 1.2 times as fast in measurements on a CPU.",
        ("forward", "backward"),
    )
    return Found(
        summary=(
            f"Attention is computed {written:.0f} times per step{where(place)} as matmul, softmax,"
            " matmul, without the fused kernel."
        ),
        evidence=(
            count("products whose softmax weights values", written, "ops", "per_step"),
            ns("host time in these ops", own, "trace"),
        ),
        fix=Fix(
            f"Replace softmax(q @ k.T / sqrt(d)) @ v{where(place)} by"
            " scaled_dot_product_attention.",
            "review",
            action="Use scaled_dot_product_attention",
            code="out = torch.nn.functional.scaled_dot_product_attention(q, k, v)",
        ),
        gain=None if budget.has_device else gain,
        at=place,
    )


def fires() -> Evidence:
    return _attending(6.0)


def clear() -> Evidence:
    """As many softmaxes and products, but the scores are not a product: a graph network."""
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
