"""Attention written as matmul, softmax, matmul

## What it measures
Softmaxes of a matrix product whose result is multiplied with another matrix, followed from call to
call in counted steps, and the time of these ops in a traced step; and calls of `MultiheadAttention`
that return the attention weights, which is its default. Scores that are not a product (a graph
network's sums) and softmaxes that weight nothing (contrastive losses) do not count.

## Why it is slow
The score matrix (n² numbers per head for a sequence of length n) is written to memory, read by the
softmax, and written and read again. The fused form never stores it.

## What to do
Call `torch.nn.functional.scaled_dot_product_attention(q, k, v)` instead. Call `MultiheadAttention`
with `need_weights=False`.

## How the gain is computed
On a CPU, from the time of these ops: the fused form was 1.03 to 1.7 times as fast in measurements.
On a device, from all kernels that read or write the scores and copy the products' operands, and
from what the fused kernel needs for the same products at 73 % (low end: 34 %) of the data sheet's
rate; if shapes or rates are unknown, from the time of the kernels that these ops launch: high end a
third of it is left, low end nothing is gained. If the ops' launches are unknown, no gain is
claimed.

## When this advice is wrong
The fused form does not return attention weights, so code that reads or changes them after the
softmax needs the written form. A bare trace does not show the input of a softmax: there the shapes
must fit, of a product's result, a softmax and another product's operand.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence

from msgspec.structs import replace

from tdiag.evidence.device import DeviceParts, DeviceTime
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.steps import Budget, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Attention, FusedAttention, HostOps, Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold
from tdiag.rules.attention_time import PARTS, gain_on_device, kernels_ns, written_out
from tdiag.rules.base import Abstain, Found, Gain, count, ns, where
from tdiag.rules.device_waits import busy_scale
from tdiag.rules.examples import MS, at, budget, host_op, host_ops, ops, traced

CODE = "TD608"
NAME = "attention-written-out"
CLASS = "compute"
UNTRIED = "the lines that compute attention must be replaced"

FUSED_HIGH_FRAC = Threshold(
    0.42,
    "of the time",
    "Measured, written out against fused, forward and backward, one core, torch 2.13, five shapes"
    " with sequences of 64 to 1,024 and heads of 32 and 64: 1.06× to 1.23×, in another run 1.17× to"
    " 1.72×; 1 − 1 ÷ 1.72 = 0.42 (benchmarks/rule_constants.py td608).",
)
FUSED_LOW_FRAC = Threshold(
    0.03,
    "of the time",
    "The same measurement on another machine: 1.03× at sequence length 256; 1 − 1 ÷ 1.03 = 0.03"
    " (benchmarks/rule_constants.py td608).",
)
# Hugging Face's argument, or the setting of its config.
_EAGER = re.compile(r"""attn_implementation["'\]]*\s*[=:]\s*["']eager""")


def check(
    budget: Budget,
    ops: Ops | None,
    host_ops: HostOps,
    traced: TracedSteps,
    parts: DeviceParts | None,
    device: DeviceTime | None,
    work: Work | None,
    roof: Roof | None,
) -> Found | None:
    asked = [x for x in ops.fused_attention if "weights" in x.unfused] if ops else []
    calls: list[Attention | FusedAttention] = [*_written(ops, work), *asked]
    written = sum(x.per_step for x in calls)
    counts = {op.name: op.count for op in host_ops.ops}
    if not written or any("scaled_dot_product" in name for name in counts):
        return None
    source = "trace" if ops is None or ops.attention is None else "ops"
    most = max(calls, key=lambda x: x.per_step)
    place, chosen = most.at, _chosen(most.at)
    own = sum(op.self_ns for op in host_ops.ops if op.name in PARTS)
    cost = own * budget.step_ns / traced.mean_ns
    on_device = kernels_ns(budget, parts, device)
    scale = busy_scale(budget, device) if device else 1.0
    gain = gain_on_device(on_device, work, roof, scale) if on_device else None
    if not budget.has_device:
        gain = Gain(
            cost * FUSED_LOW_FRAC,
            cost * FUSED_HIGH_FRAC,
            "the fused form was 1.03 to 1.7 times as fast in measurements on a CPU.",
            ("forward", "backward"),
        )
    asked_for = f", as asked for{where(chosen)}" if chosen else ""
    return Found(
        summary=(
            f"Attention is computed {written:.0f} times per step{where(place)} as matmul, softmax,"
            f" matmul, without the fused kernel{asked_for}."
        ),
        evidence=(
            count("attention without the fused kernel", written, source, "per_step"),
            ns("host time in these ops", own, "trace"),
            *((ns("kernels of these ops", on_device, "trace"),) if on_device else ()),
        ),
        fix=_fix(place, most in asked),
        gain=gain,
        at=chosen or place,
    )


def _chosen(place: Place | None) -> Place | None:
    """The line of the same file that asks a library's model for the form that is written out."""
    lines = linecache.getlines(place.file) if place else []
    for number, line in enumerate(lines, 1):
        if place and _EAGER.search(line):
            return Place(place.file, number, place.function)
    return None


def _written(ops: Ops | None, work: Work | None) -> Sequence[Attention]:
    """By following tensors; in a bare trace by shapes."""
    if ops is not None and ops.attention is not None:
        return ops.attention
    if work is None:
        raise Abstain("tensors were not followed from one matrix product to the next")
    found = written_out(work)
    return () if found is None else (found,)


def _fix(place: Place | None, asked: bool) -> Fix:
    if asked:
        return Fix(
            f"Call MultiheadAttention{where(place)} with need_weights=False, unless the weights"
            " that it returns are used: no fused kernel returns them.",
            "review",
            action="Call MultiheadAttention with need_weights=False",
            code="out, _ = attention(q, k, v, need_weights=False)",
        )
    return Fix(
        f"Replace softmax(q @ k.T / sqrt(d)) @ v{where(place)} by scaled_dot_product_attention.",
        "review",
        action="Use scaled_dot_product_attention",
        code="out = torch.nn.functional.scaled_dot_product_attention(q, k, v)",
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
