"""Matrix products in float32 while matrix units are idle

## What it measures
Device time of matrix products, convolutions and attention whose kernels compute in float32 without
matrix units (tensor cores, MFMA).

## Why it is slow
Matrix units multiply 16-bit or TF32 numbers several times faster than the ordinary units multiply
float32. 16-bit numbers also halve the memory traffic.

## What to do
Autocast to bfloat16 (or float16 with a GradScaler), or allow TF32 for what stays float32.

## How the gain is computed
From the float32 kernels' time. High end: three times as fast. Low end: 1.5 times if the trace shows
matrix units in use on this device; otherwise nothing.

## When this advice is wrong
Devices older than Volta (NVIDIA) or MI100 (AMD) have no matrix units. Reductions over very long
axes and losses with large exponents need float32: autocast keeps the ones it knows.
"""

from __future__ import annotations

from collections.abc import Iterable

from tdiag.evidence.device import DeviceTime, KernelFamily, Kernels
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Flags
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, Gain
from tdiag.rules.examples import MS, budget, device_time, family, kernels
from tdiag.rules.measures import ns
from tdiag.units import per_step

CODE = "TD601"
NAME = "float32-matrix-kernels"
CLASS = "compute"

# Kernel families that matrix units can compute.
MATRIX = ("gemm", "conv", "attention")
FASTER_HIGH = Threshold(
    3.0,
    "times as fast",
    'NVIDIA, "Train With Mixed Precision": up to 3× overall on arithmetic-bound models.',
)
FASTER_LOW = Threshold(
    1.5, "times as fast", "Heuristic: half of the high end, for kernels partly bound by memory."
)


def check(
    budget: Budget, kernels: Kernels, device: DeviceTime, flags: Flags | None
) -> Found | None:
    matrix = [x for x in kernels.families if x.family in MATRIX and x.tensor_core_ns is not None]
    cost = _float32(matrix) * budget.step_ns / device.step_ns
    if not cost or (flags is not None and flags.autocast_dtype):
        return None
    units = sum(x.tensor_core_ns or 0.0 for x in matrix)
    return Found(
        summary=(
            f"Matrix kernels in float32 without matrix units take {per_step(cost, budget.step_ns)}."
        ),
        evidence=(
            ns("float32 matrix kernels", _float32(matrix), "trace"),
            ns("matrix kernels on matrix units", units, "trace"),
            *(ns(f"{x.family} kernels", x.device_ns, "trace") for x in matrix),
        ),
        fix=Fix(
            "Run forward and loss under torch.autocast with bfloat16. To keep float32, call"
            " torch.set_float32_matmul_precision('high').",
            "review",
            None,
            action="Run matrix products in bfloat16",
            code="with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "    loss = loss_fn(model(inputs), targets)",
        ),
        gain=Gain(
            cost * (1 - 1 / FASTER_LOW) if units else 0.0,
            cost * (1 - 1 / FASTER_HIGH),
            "high end: three times as fast on matrix units; low end: 1.5 times, if they are in"
            " use.",
            ("compute",),
            {f"{family} float32": 1 / FASTER_LOW for family in MATRIX if units},
            {f"{family} float32": 1 / FASTER_HIGH for family in MATRIX},
        ),
    )


def _float32(families: Iterable[KernelFamily]) -> float:
    """Device time in float32 without matrix units, ns per traced step."""
    return sum(min(x.float32_ns, x.device_ns - (x.tensor_core_ns or 0.0)) for x in families)


def fires() -> Evidence:
    slow = family("gemm", 40, float32_ns=36 * MS, tensor_core_ns=2.0 * MS)
    return Evidence().add(budget(device=True, compute=50), kernels(slow), device_time(50))


def clear() -> Evidence:
    """The same products on tensor cores."""
    fast = family("gemm", 12, float32_ns=0.0, tensor_core_ns=12.0 * MS)
    return Evidence().add(budget(device=True, compute=20), kernels(fast), device_time(20))
