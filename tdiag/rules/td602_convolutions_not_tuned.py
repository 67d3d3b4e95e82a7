"""Convolutions run without autotuning

## What it measures
Share of device time in convolution kernels while `torch.backends.cudnn.benchmark` is off, and
whether the shapes of the convolutions repeat from step to step.

## Why it is slow
Without autotuning cuDNN picks an algorithm by a heuristic. With it, the first call of each shape
tries the algorithms and keeps the fastest.

## What to do
Set `torch.backends.cudnn.benchmark = True` before the first step.

## How the gain is computed
High end: a fifth of the convolutions' time. Low end: nothing, if the heuristic was right. `tdiag
try` measures it.

## When this advice is wrong
Shapes that change from step to step (variable image sizes) are tuned again each time: the rule is
silent if most convolutions have shapes that do not occur in every traced step. Results may differ
in the last bits from run to run.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, Kernels
from tdiag.evidence.roofline import Work, convolves
from tdiag.evidence.steps import Budget, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import MatrixOps
from tdiag.evidence.training import Flags, Settings
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import Abstain, Found, Gain, frac, ns, text, where
from tdiag.rules.device_waits import busy_scale
from tdiag.rules.examples import budget, device_time, family, flags, kernels, matrix_op, traced
from tdiag.units import per_step

CODE = "TD602"
NAME = "convolutions-not-tuned"
CLASS = "compute"

TUNED_HIGH_FRAC = Threshold(
    0.2,
    "of the convolutions' time",
    "Heuristic: another algorithm may save up to a fifth; not measured.",
)


def check(
    budget: Budget,
    kernels: Kernels,
    flags: Flags,
    device: DeviceTime,
    traced_steps: TracedSteps,
    matrices: MatrixOps,
    settings: Settings | None,
    work: Work | None,
) -> Found | None:
    convolving = sum(x.device_ns for x in kernels.families if x.family == "conv")
    if not convolving or flags.cudnn_benchmark or flags.deterministic:
        return None
    repeating = _repeating(matrices, traced_steps)
    if repeating < MAJORITY_FRAC:
        return None
    off = settings.last("cudnn.benchmark", False) if settings else None
    cost = convolving * busy_scale(budget, device)
    return Found(
        summary=(
            f"Convolutions take {per_step(cost, budget.step_ns)} with cuDNN's autotuning off"
            f"{where(off.at if off else None)}."
        ),
        evidence=(
            ns("convolution kernels", convolving, "trace"),
            text("torch.backends.cudnn.benchmark", "False", "probe"),
            frac("convolutions whose shape every traced step has", repeating, "trace"),
        ),
        fix=Fix(
            "Switch autotuning on before the first step.",
            "review",
            "torch.cudnn_benchmark",
            action="Switch on cuDNN's autotuning",
            code="torch.backends.cudnn.benchmark = True",
        ),
        gain=Gain(
            0.0,
            cost * TUNED_HIGH_FRAC,
            "high end: a fifth of the convolutions' time; low end: nothing, if cuDNN's own choice"
            " is the fastest.",
            ("compute",),
            high_cuts=dict.fromkeys(("conv", "conv float32"), 1 - TUNED_HIGH_FRAC),
        ),
        at=off.at if off else work.heaviest(convolves) if work else None,
    )


def _repeating(matrices: MatrixOps, steps: TracedSteps) -> float:
    """Share of the convolutions, 0..1, whose shape occurs at least once in each step."""
    mine = [op for op in matrices.ops if "conv" in op.name and op.dims]
    if steps.count <= 1 or not mine:
        raise Abstain("whether the convolutions' shapes repeat is unknown: one step was traced, or"
                      " no shapes of convolutions")  # fmt: skip
    return sum(op.count for op in mine if op.count >= 1) / sum(op.count for op in mine)


def fires() -> Evidence:
    return _convolving(flags())


def clear() -> Evidence:
    """The same convolutions, tuned."""
    return _convolving(flags(cudnn_benchmark=True))


def _convolving(switches: Flags) -> Evidence:
    shapes = (64, 3, 224, 224), (64, 3, 7, 7)
    return Evidence().add(
        budget(device=True, compute=50), kernels(family("conv", 35)), switches, device_time(50),
        traced(50), MatrixOps(ops=(matrix_op("aten::cudnn_convolution", *shapes),)),
    )  # fmt: skip
