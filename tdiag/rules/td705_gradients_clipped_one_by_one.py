"""Gradients are clipped tensor by tensor

## What it measures
Calls of `clip_grad_norm_` and `clip_grad_value_` by line in the counted steps: how many per step,
whether they take all tensors at once (`foreach`), and their share of the optimizer's time.

## Why it is slow
Each gradient costs two calls, one for its norm and one for its scaling, of a few microseconds each
whatever its size. If clipping is called once per parameter, the work around it repeats as well, and
the clipped norm is not the norm of the whole gradient.

## What to do
Clip all parameters in one call and leave `foreach` at its default.

## How the gain is computed
From its share of the optimizer's time. High end: for calls made once per parameter, all but one;
for `foreach=False`, what foreach gained on small tensors in measurements; on a device, its idle
time during clipping. Low end: nothing.

## When this advice is wrong
With large tensors (100,000 numbers and more) on a CPU, `foreach=True` gained nothing or lost.
Clipping each parameter separately is another method and may be intended.
"""

from __future__ import annotations

from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.evidence.training import Clip, ClipCalls
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import Found, Gain, count, held, ns, text, where
from tdiag.rules.examples import MS, at, budget, op_line, ops
from tdiag.units import per_step

CODE = "TD705"
NAME = "gradients-clipped-one-by-one"
CLASS = "overhead"
UNTRIED = (
    "one call clips a different norm than a loop; `foreach=False` alone: `optimizer.clip_foreach`"
)

FOREACH_WINS = Threshold(
    1.3,
    "times as fast",
    "Measured, clip_grad_norm_ with foreach=True against False, one thread, torch 2.13: 1.3×"
    " with 100 tensors of 64 to 4,096 numbers; 0.85× to 1.04× with 65,536 and more"
    " (benchmarks/rule_constants.py td705).",
)
USUAL_CALLS = Threshold(
    2,
    "calls per step",
    "Heuristic: a GAN's two optimizers or two parameter groups need two calls; more are a loop.",
)


def check(budget: Budget, clips: ClipCalls, ops: Ops) -> Found | None:
    slow = [x for x in clips.clips if x.foreach is False or x.calls > USUAL_CALLS]
    if not slow:
        return None
    worst = max(slow, key=lambda x: x.elapsed_ns)
    cost = _share(worst, ops) * held(budget, "optimizer")
    if cost < NOTICEABLE_FRAC * budget.step_ns:
        return None
    looped = worst.calls > USUAL_CALLS
    how = (
        f"{worst.calls:.0f} calls of {worst.name} per step"
        if looped
        else f"Calls of {worst.name} with foreach=False"
    )
    won = cost * (1 - (1 / worst.calls if looped else 1 / FOREACH_WINS))
    return Found(
        summary=(
            f"{how}{where(worst.at)} clip gradients one by one: {per_step(cost, budget.step_ns)}."
        ),
        evidence=(
            count("calls", worst.calls, "ops", "per_step"),
            count("tensors per call", worst.tensors, "ops"),
            text("foreach", str(worst.foreach), "ops"),
            ns("their share of the optimizer's time", cost, "ops"),
        ),
        fix=Fix(
            f"Call {worst.name}{where(worst.at)} once for all parameters, without foreach=False.",
            "review",
            None if looped else "optimizer.clip_foreach",
            action="Clip all gradients in one call",
            code=f"torch.nn.utils.{worst.name}(model.parameters(), limit)",
        ),
        gain=Gain(
            0.0,
            cost if budget.has_device else won,
            f"high end: {'one call is left' if looped else f'{FOREACH_WINS} times as fast'};"
            " low end: nothing, if the tensors are large.",
            ("optimizer",),
        ),
        at=worst.at,
    )


def _share(clip: Clip, ops: Ops) -> float:
    """Torch calls of its line ÷ all torch calls of the optimizer phase, by time."""
    lines = [x for x in ops.lines if x.phase == "optimizer"]
    mine = [x for x in lines if clip.at and x.at.spot == clip.at.spot]
    every = sum(x.elapsed_ns for x in lines)
    return sum(x.elapsed_ns for x in mine) / every if every else 0.0


def fires() -> Evidence:
    """A loop over the parameters, each clipped on its own."""
    return _training(calls=120.0, foreach=None)


def clear() -> Evidence:
    """One call for all parameters."""
    return _training(calls=1.0, foreach=None)


def _training(calls: float, foreach: bool | None) -> Evidence:
    clip = Clip(
        name="clip_grad_norm_", at=at(72), calls=calls, elapsed_ns=4.0 * MS, total_ns=None,
        tensors=1, foreach=foreach,
    )  # fmt: skip
    updating = op_line(73, "optimizer", 300, elapsed_ns=4.0 * MS)
    clipping = op_line(72, "optimizer", 4 * calls, elapsed_ns=4.0 * MS)
    step = budget(forward=6, backward=9, optimizer=6)
    return Evidence().add(step, ClipCalls(clips=(clip,)), ops(updating, clipping))
