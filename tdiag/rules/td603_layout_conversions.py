"""Layouts are converted around convolutions

## What it measures
Device time of kernels that only change the memory layout (NCHW to NHWC and back).

## Why it is slow
Convolutions on matrix units want channels last. Given channels first, each converts its input and
its output, and the memory traffic is paid twice more.

## What to do
Keep everything channels last: the model and its input, once.

## How the gain is computed
High end: all conversion time. Low end: half, if some layers still convert.

## When this advice is wrong
Layers of one's own that index channels by position keep working (the shape does not change), but
calls of `.view()` may need `.reshape()`.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, Kernels
from tdiag.evidence.kinds import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain
from tdiag.rules.examples import budget, device_time, family, kernels
from tdiag.rules.measures import count, ns
from tdiag.units import duration, percent

CODE = "TD603"
NAME = "layout-conversions"
CLASS = "compute"

# Half may stay where single layers have no channels-last kernel; ours.
REMAINING_FRAC = 0.5


def check(budget: Budget, kernels: Kernels, device: DeviceTime) -> Found | None:
    layout = [x for x in kernels.families if x.family == "layout"]
    traced = sum(x.device_ns for x in layout)
    if not traced:
        return None
    cost = traced * budget.step_ns / device.step_ns
    return Found(
        summary=(
            f"Kernels that only convert memory layouts take {duration(cost)} a step"
            f" ({percent(cost / budget.step_ns)})."
        ),
        evidence=(
            ns("layout conversions", traced, "trace"),
            count("conversion kernels", sum(x.count for x in layout), "trace", "per_step"),
        ),
        fix=Fix(
            "model.to(memory_format=torch.channels_last) once, and"
            " x.to(memory_format=torch.channels_last) for each batch.",
            "safe",
            "channels_last",
        ),
        gain=Gain(
            cost * REMAINING_FRAC,
            cost,
            "high end: no layer converts; low end: half of the conversions stay.",
            ("compute",),
            {"layout": REMAINING_FRAC},
            {"layout": 0.0},
        ),
    )


def fires() -> Evidence:
    step = budget(device=True, compute=50)
    found = kernels(family("conv", 35), family("layout", 6))
    return Evidence().add(step, found, device_time(50))


def clear() -> Evidence:
    """Channels last throughout."""
    step = budget(device=True, compute=50)
    return Evidence().add(step, kernels(family("conv", 35)), device_time(50))
