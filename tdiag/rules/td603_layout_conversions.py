"""Memory layouts are converted around convolutions

## What it measures
Device time of kernels that only convert between NCHW and NHWC, in a model whose convolutions are
not yet in channels-last layout.

## Why it is slow
Tensor-core convolutions work in channels-last layout. A model in the default layout converts the
input and output of each, which adds two passes over memory.

## What to do
Keep everything channels-last: convert the model and each input once.

## How the gain is computed
High end: all conversion time. Low end: half, if some layers still convert.

## When this advice is wrong
Custom layers that index channels by position keep working (the shape does not change), but calls of
`.view()` may need `.reshape()`.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, Kernels
from tdiag.evidence.roofline import Work, convolves
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Layers
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import Found, Gain, count, ns
from tdiag.rules.device_waits import busy_scale
from tdiag.rules.examples import budget, device_time, family, kernels
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import per_step

CODE = "TD603"
NAME = "layout-conversions"
CLASS = "compute"


def check(
    budget: Budget,
    kernels: Kernels,
    device: DeviceTime,
    layers: Layers | None,
    work: Work | None,
) -> Found | None:
    if layers is not None and layers.channels_last_bytes > MAJORITY_FRAC * layers.conv_bytes:
        return None  # the model is converted already
    layout = [x for x in kernels.families if x.family == "layout"]
    traced = sum(x.device_ns for x in layout)
    if not traced:
        return None
    cost = traced * busy_scale(budget, device)
    return Found(
        summary=f"Kernels that only convert memory layouts take {per_step(cost, budget.step_ns)}.",
        evidence=(
            ns("layout conversions", traced, "trace"),
            count("conversion kernels", sum(x.count for x in layout), "trace", "per_step"),
        ),
        fix=Fix(
            "Convert the model once, and each batch of images, to channels-last layout.",
            "safe",
            "model.channels_last",
            action="Use channels-last layout for model and input",
            code="model = model.to(memory_format=torch.channels_last)  # once\n"
            "images = images.to(memory_format=torch.channels_last)  # each batch",
        ),
        gain=Gain(
            cost * LOW_END_FRAC,
            cost,
            "high end: no layer converts; low end: half of the conversions stay.",
            ("compute",),
            {"layout": LOW_END_FRAC},
            {"layout": 0.0},
        ),
        at=work.heaviest(convolves) if work else None,
    )


def fires() -> Evidence:
    step = budget(device=True, compute=50)
    found = kernels(family("conv", 35), family("layout", 6))
    return Evidence().add(step, found, device_time(50))


def clear() -> Evidence:
    """Channels last throughout."""
    step = budget(device=True, compute=50)
    return Evidence().add(step, kernels(family("conv", 35)), device_time(50))
