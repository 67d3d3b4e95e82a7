"""Chains of element-wise kernels

## What it measures
Device time in element-wise kernels (activations, additions, casts, dropout, indexing) of a model
that is not compiled.

## Why it is slow
Each kernel reads its input from memory and writes its output back. A chain of four moves four times
the data of one fused kernel.

## What to do
Fuse chains with `torch.compile(model)`, or use the fused form of a module where torch has one.

## How the gain is computed
From the element-wise kernels' time. High end: chains of four become one kernel. Low end: nothing,
because kernels between matrix products may have no neighbour to fuse with.

## When this advice is wrong
Compiling takes seconds to minutes at the start and for every new shape.
"""

from __future__ import annotations

import re

from tdiag.evidence.device import DeviceTime, Kernels
from tdiag.evidence.roofline import Work
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import HostOps
from tdiag.evidence.training import Flags
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, count, ns
from tdiag.rules.examples import budget, device_time, family, flags, kernels
from tdiag.rules.thresholds import FUSED_HIGH_FRAC
from tdiag.units import per_step

CODE = "TD604"
NAME = "elementwise-chains"
CLASS = "compute"

# Host ops of a model that dynamo has compiled (torch._inductor names them so).
COMPILED_OPS = ("CompiledFxGraph", "Torch-Compiled Region", "CompiledFunction", "triton")
# Ops that compute each number by itself, by torch's names.
ELEMENTWISE = re.compile(
    r"::(add|sub|rsub|mul|div|pow|sqrt|rsqrt|exp|log|neg|abs|clamp|clamp_min|where|lerp|addcmul|copy"
    r"|relu|leaky_relu|gelu|silu|elu|tanh|sigmoid|hardtanh|threshold|native_dropout)_?$"
)


def check(
    budget: Budget,
    kernels: Kernels,
    device: DeviceTime,
    host_ops: HostOps | None,
    flags: Flags | None,
    work: Work | None,
) -> Found | None:
    chains = [x for x in kernels.families if x.family == "elementwise"]
    traced = sum(x.device_ns for x in chains)
    if not traced or _compiled(host_ops, flags):
        return None
    cost = traced * budget.step_ns / device.step_ns
    return Found(
        summary=(
            f"Unfused element-wise kernels take {per_step(cost, budget.step_ns)}; each is one"
            " launch and one pass over memory."
        ),
        evidence=(
            ns("element-wise kernels", traced, "trace"),
            count("element-wise kernels", sum(x.count for x in chains), "trace", "per_step"),
        ),
        fix=Fix(
            "Compile the model before the first step; the compiler fuses element-wise chains.",
            "review",
            "torch.compile",
            action="Compile the model to fuse element-wise kernels",
            code="model = torch.compile(model)",
        ),
        gain=Gain(
            0.0,
            cost * FUSED_HIGH_FRAC,
            "high end: chains of four become one kernel; low end: nothing, if no two are adjacent.",
            ("compute",),
            high_cuts={"elementwise": 1 - FUSED_HIGH_FRAC},
        ),
        at=work.heaviest(lambda op: ELEMENTWISE.search(op.name) is not None) if work else None,
    )


def _compiled(host_ops: HostOps | None, flags: Flags | None) -> bool:
    if flags is not None and flags.compiled:
        return True
    names = (op.name for op in host_ops.ops) if host_ops else ()
    return any(part in name for name in names for part in COMPILED_OPS)


def fires() -> Evidence:
    step = budget(device=True, compute=50)
    found = kernels(family("gemm", 20), family("elementwise", 22))
    return Evidence().add(step, found, device_time(50), flags())


def clear() -> Evidence:
    """A compiled model: its element-wise kernels are fused already."""
    step = budget(device=True, compute=50)
    found = kernels(family("gemm", 20), family("elementwise", 22))
    return Evidence().add(step, found, device_time(50), flags(compiled=True))
