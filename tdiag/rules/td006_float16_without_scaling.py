"""float16 without loss scaling

## What it measures
The autocast dtype of the forward pass, and whether an enabled `GradScaler` has stepped.

## Why it is slow
It is not slow: gradients below 6e-8 are zero in float16, and training stalls or diverges.

## What to do
Scale the loss with a `GradScaler`; or use bfloat16, which has the range of float32 and needs none.

## How the gain is computed
No gain is predicted: the fix changes what is computed, not how long it takes.

## When this advice is wrong
Libraries with a scaler of their own (DeepSpeed, Apex) do not use torch's.
"""

from __future__ import annotations

from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Flags, Optimizers
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, text, where
from tdiag.rules.examples import flags, optimizers

CODE = "TD006"
NAME = "float16-without-scaling"
CLASS = "compute"


def check(flags: Flags, optimizers: Optimizers) -> Found | None:
    if flags.autocast_dtype.removeprefix("torch.") != "float16" or flags.grad_scaler:
        return None
    if flags.grad_scaler is None:
        raise Abstain("the steps of a GradScaler were not recorded")
    stepped = [x for x in optimizers.optimizers if x.created_at is not None]
    at = stepped[0].created_at if stepped else None
    return Found(
        summary="The forward pass runs in float16, and no GradScaler scales the loss.",
        evidence=(
            text("autocast", "float16", "probe"),
            text("GradScaler", "none has stepped", "probe"),
        ),
        fix=Fix(
            f"Step the optimizer{where(at)} through a torch.amp.GradScaler. Or autocast to"
            " torch.bfloat16, which needs no scaling.",
            "review",
            action="Scale the loss with a GradScaler",
            code=(
                "scaler = torch.amp.GradScaler(device.type)  # once, before the loop\n"
                "scaler.scale(loss).backward()\n"
                "scaler.step(optimizer)\n"
                "scaler.update()"
            ),
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
