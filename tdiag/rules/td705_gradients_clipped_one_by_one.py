"""Gradients are clipped tensor by tensor

## What it measures
Calls of `clip_grad_norm_` and `clip_grad_value_` by line in the counted steps: how many a step,
whether they take all tensors at once (`foreach`), and their part of the optimizer's time.

## Why it is slow
The norm of each gradient is a call of its own, and so is each scaling: two for every tensor, of a
few microseconds each whatever the size. Called for each parameter, the work around it is repeated
as well, and the norm that is clipped is not the gradient's.

## What to do
One call for all parameters, with `foreach` left to its default.

## How the gain is computed
From its share of the optimizer's time. Calls that are made once for each parameter: all but one of
them, at best. `foreach=False`: what the other form won on small tensors where it was tried. On a
device, its idle time meanwhile at best. Low end: nothing.

## When this advice is wrong
With large tensors (100,000 numbers and more) on a CPU, `foreach=True` won nothing or lost. Clipping
each parameter on its own is another method, and may be meant.
"""

from __future__ import annotations

from tdiag.evidence.kinds import Budget, Ops
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Clip, ClipCalls
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, held, where
from tdiag.rules.examples import MS, at, budget, op_line, ops
from tdiag.rules.measures import count, ns, text
from tdiag.rules.thresholds import NOTICEABLE_FRAC
from tdiag.units import duration, percent

CODE = "TD705"
NAME = "gradients-clipped-one-by-one"
CLASS = "overhead"

# clip_grad_norm_ with foreach=True against False on one thread, torch 2.13: 1.3× with 100 tensors
# of 64 to 4096 numbers; 0.85× to 1.04× with 65,536 and more.
FOREACH_WINS = 1.3
# Called twice: a GAN with two optimizers, or two groups that are clipped apart. More is a loop.
USUAL_CALLS = 2


def check(budget: Budget, clips: ClipCalls, ops: Ops) -> Found | None:
    slow = [x for x in clips.clips if x.foreach is False or x.calls > USUAL_CALLS]
    if not slow:
        return None
    worst = max(slow, key=_elapsed)
    cost = _share(worst, ops) * held(budget, "optimizer")
    if cost < NOTICEABLE_FRAC * budget.step_ns:
        return None
    looped = worst.calls > USUAL_CALLS
    how = (
        f"{worst.calls:.0f} calls of {worst.name} a step"
        if looped
        else f"{worst.name} with foreach=False"
    )
    won = cost * (1 - (1 / worst.calls if looped else 1 / FOREACH_WINS))
    return Found(
        summary=(
            f"{how}{where(worst.at)}: gradients are clipped one by one, {duration(cost)} a step"
            f" ({percent(cost / budget.step_ns)})."
        ),
        evidence=(
            count("calls", worst.calls, "ops", "per_step"),
            count("tensors of a call", worst.tensors, "ops"),
            text("foreach", str(worst.foreach), "ops"),
            ns("their part of the optimizer's time", cost, "ops"),
        ),
        fix=Fix(
            f"torch.nn.utils.{worst.name}(model.parameters(), …){where(worst.at)}, once for all"
            " parameters and without foreach=False.",
            "review",
        ),
        gain=Gain(
            0.0,
            cost if budget.has_device else won,
            "high end: one call is left, or foreach wins what it does on small tensors; low end:"
            " the tensors are large.",
            ("optimizer",),
        ),
        at=worst.at,
    )


def _share(clip: Clip, ops: Ops) -> float:
    """What the torch calls of its line take of those between backward and the end of the step."""
    lines = [x for x in ops.lines if x.phase == "optimizer"]
    mine = [x for x in lines if clip.at and (x.at.file, x.at.line) == (clip.at.file, clip.at.line)]
    every = sum(x.elapsed_ns for x in lines)
    return sum(x.elapsed_ns for x in mine) / every if every else 0.0


def _elapsed(clip: Clip) -> float:
    return clip.elapsed_ns


def fires() -> Evidence:
    """A loop over the parameters, each clipped on its own."""
    return _training(calls=120.0, foreach=None)


def clear() -> Evidence:
    """Once for all of them."""
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
