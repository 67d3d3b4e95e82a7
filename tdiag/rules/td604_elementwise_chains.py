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
From the time of the kernels that follow one another in the trace, without those of the optimizer.
High end: each chain becomes one kernel, as long as its longest. Low end: half of that goes: the
compiler cannot fuse them all.

## When this advice is wrong
Compiling takes seconds to minutes at the start and for every new shape.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from tdiag.evidence.device import Chains, DeviceTime, Kernels
from tdiag.evidence.roofline import Work
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import HostOps
from tdiag.evidence.training import Flags
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, count, ns
from tdiag.rules.device_waits import busy_scale
from tdiag.rules.examples import MS, budget, device_time, family, flags, kernels
from tdiag.rules.thresholds import LOW_END_FRAC
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
    chains = kernels.chains
    if chains is None or _compiled(host_ops, flags):
        return None
    scale = busy_scale(budget, device)
    cost = chains.device_ns * scale
    fused = chains.device_ns - chains.longest_ns
    whole = sum(x.device_ns for x in kernels.families if x.family == "elementwise")
    return Found(
        summary=(
            f"Unfused element-wise kernels take {per_step(cost, budget.step_ns)}; each is one"
            " launch and one pass over memory."
        ),
        evidence=(
            ns("element-wise kernels", chains.device_ns, "trace"),
            count("element-wise kernels", chains.kernels, "trace", "per_step"),
            ns("of these, the longest of each chain", chains.longest_ns, "trace"),
        ),
        fix=Fix(
            "Compile the model before the first step; the compiler fuses element-wise chains.",
            "review",
            "torch.compile",
            action="Compile the model to fuse element-wise kernels",
            code="model = torch.compile(model)",
        ),
        gain=Gain(
            fused * scale * LOW_END_FRAC,
            fused * scale,
            "high end: each chain becomes one kernel; low end: half of that goes.",
            ("compute",),
            {"elementwise": 1 - fused / whole * LOW_END_FRAC},
            {"elementwise": 1 - fused / whole},
        ),
        at=work.heaviest(lambda op: ELEMENTWISE.search(op.name) is not None) if work else None,
    )


def _compiled(host_ops: HostOps | None, flags: Flags | None) -> bool:
    if flags is not None and flags.compiled:
        return True
    names = (op.name for op in host_ops.ops) if host_ops else ()
    return any(part in name for name in names for part in COMPILED_OPS)


def fires() -> Evidence:
    """Forty kernels in chains of four."""
    step = budget(device=True, compute=50)
    return Evidence().add(step, _chained(), device_time(50), flags())


def clear() -> Evidence:
    """A compiled model: its element-wise kernels are fused already."""
    step = budget(device=True, compute=50)
    return Evidence().add(step, _chained(), device_time(50), flags(compiled=True))


def _chained() -> Kernels:
    chains = Chains(kernels=40.0, device_ns=22 * MS, longest_ns=5.5 * MS)
    return replace(kernels(family("gemm", 20), family("elementwise", 22)), chains=chains)
