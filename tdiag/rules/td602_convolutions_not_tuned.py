"""Convolutions run without autotuning

## What it measures
Share of device time in convolution kernels while `torch.backends.cudnn.benchmark` is off.

## Why it is slow
Without autotuning cuDNN picks an algorithm by a heuristic. With it, the first call of each shape
tries the algorithms and keeps the fastest.

## What to do
Set `torch.backends.cudnn.benchmark = True` before the first step.

## How the gain is computed
High end: a fifth of the convolutions' time. Low end: nothing, if the heuristic was right. `tdiag
try` measures it.

## When this advice is wrong
Shapes that change from step to step (variable image sizes) are tuned again each time. Results may
differ in the last bits from run to run.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, Kernels
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Flags
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, Gain
from tdiag.rules.examples import budget, device_time, family, flags, kernels
from tdiag.rules.measures import ns, text
from tdiag.units import per_step

CODE = "TD602"
NAME = "convolutions-not-tuned"
CLASS = "compute"

TUNED_HIGH_FRAC = Threshold(
    0.2,
    "of the convolutions' time",
    "Heuristic: another algorithm may save up to a fifth; not measured.",
)


def check(budget: Budget, kernels: Kernels, flags: Flags, device: DeviceTime) -> Found | None:
    traced = sum(x.device_ns for x in kernels.families if x.family == "conv")
    if not traced or flags.cudnn_benchmark or flags.deterministic:
        return None
    cost = traced * budget.step_ns / device.step_ns
    return Found(
        summary=f"Convolutions take {per_step(cost, budget.step_ns)} with cuDNN's autotuning off.",
        evidence=(
            ns("convolution kernels", traced, "trace"),
            text("torch.backends.cudnn.benchmark", "False", "probe"),
        ),
        fix=Fix(
            "Switch autotuning on before the first step, if input shapes repeat.",
            "review",
            None,
            action="Switch on cuDNN's autotuning",
            code="torch.backends.cudnn.benchmark = True",
        ),
        gain=Gain(
            0.0,
            cost * TUNED_HIGH_FRAC,
            "high end: a fifth of the convolutions' time; low end: cuDNN's choice was right.",
            ("compute",),
            high_cuts=dict.fromkeys(("conv", "conv float32"), 1 - TUNED_HIGH_FRAC),
        ),
    )


def fires() -> Evidence:
    step = budget(device=True, compute=50)
    return Evidence().add(step, kernels(family("conv", 35)), flags(), device_time(50))


def clear() -> Evidence:
    """The same convolutions, tuned."""
    tuned = flags(cudnn_benchmark=True)
    step = budget(device=True, compute=50)
    return Evidence().add(step, kernels(family("conv", 35)), tuned, device_time(50))
