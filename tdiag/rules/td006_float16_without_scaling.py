"""Float16 without loss scaling

## What it measures
The dtype of autocast in the forward pass, and whether an enabled `GradScaler` has stepped.

## Why it is slow
It is not: gradients below 6e-8 are zero in float16, and training stalls or diverges for the lack of
them.

## What to do
A `GradScaler` around backward and step; or bfloat16, whose exponents reach as far as float32's and
which needs none.

## How the gain is computed
Nothing is predicted: it is about what is computed, not about how long it takes.

## When this advice is wrong
Libraries with a scaler of their own (DeepSpeed, Apex) do not use torch's.
"""

from __future__ import annotations

from tdiag.evidence.kinds import Flags, Optimizers
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, where
from tdiag.rules.examples import flags, optimizers
from tdiag.rules.measures import text

CODE = "TD006"
NAME = "float16-without-scaling"
CLASS = "compute"


def check(flags: Flags, optimizers: Optimizers) -> Found | None:
    if flags.autocast_dtype.removeprefix("torch.") != "float16" or flags.grad_scaler:
        return None
    if flags.grad_scaler is None:
        raise Abstain("whether a GradScaler stepped was not recorded")
    stepped = [x for x in optimizers.optimizers if x.created_at is not None]
    at = stepped[0].created_at if stepped else None
    return Found(
        summary="Forward runs under autocast to float16, and no GradScaler scales the loss.",
        evidence=(
            text("autocast", "float16", "probe"),
            text("GradScaler", "none has stepped", "probe"),
        ),
        fix=Fix(
            "scaler = torch.amp.GradScaler(device.type); scaler.scale(loss).backward(),"
            f" scaler.step(optimizer) and scaler.update() with the optimizer{where(at)}; or"
            " autocast to torch.bfloat16, which needs no scaling.",
            "review",
        ),
        at=at,
    )


def fires() -> Evidence:
    half = flags(autocast_dtype="torch.float16", grad_scaler=False)
    return Evidence().add(half, optimizers("SGD"))


def clear() -> Evidence:
    """Bfloat16 has float32's range."""
    wide = flags(autocast_dtype="torch.bfloat16", grad_scaler=False)
    return Evidence().add(wide, optimizers("SGD"))
