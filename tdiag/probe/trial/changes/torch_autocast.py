"""The model computes in bfloat16 or float16 where that is safe (autocast)."""

import functools
from typing import Any

from ..change import ROUNDING, Change, Trial
from ..loss_scale import LossScale
from ..trained_models import each_model, each_tensor

NAME = "torch.autocast"


def half(text: str) -> str:
    if text not in ("bfloat16", "float16"):
        raise ValueError("takes bfloat16 or float16")
    return text


def install(trial: Trial, value: str) -> None:
    """The outermost module still returns float32, as the script's loss expects."""
    import torch

    from ... import accelerator

    lower = getattr(torch, value)
    scale: LossScale | None = None
    if value == "float16":
        scale = LossScale(trial, NAME)
        scale.install()

    def cast(result: Any) -> Any:
        return each_tensor(result, lambda x: x.float() if x.dtype is lower else x)

    def autocast(module: Any, args: Any) -> None:
        kind = next(module.parameters()).device.type
        if accelerator.autocast_enabled(kind):
            trial.refused(NAME, f"{type(module).__name__} is called under autocast already")
            return
        if scale is not None and not scale.covers(module):
            return
        forward = module.forward

        @functools.wraps(forward)
        def lowered(*args: Any, **kwargs: Any) -> Any:
            if scale is not None and scale.over:
                return forward(*args, **kwargs)
            with torch.autocast(kind, lower):
                return cast(forward(*args, **kwargs))

        module.forward = lowered
        if scale is None:
            trial.applied(NAME, f"{type(module).__name__} under {value} autocast")

    each_model(trial, autocast)


CHANGE = Change(
    name=NAME,
    does="The model computes in bfloat16, or in float16 with a scaled loss, if that is safe.",
    safety=ROUNDING,
    takes="bfloat16 or float16",
    parse=half,
    absent="no module was called in training mode with gradients on",
    limits="the loss outside the model stays float32; a device without units for the type gets"
    " slower; float16 does not apply if an optimizer's step takes a closure, if gradients are"
    " sparse or belong to tensors that are not parameters, and, with several ranks, only to"
    " DistributedDataParallel; it unscales gradients one by one, a GradScaler in fewer calls",
    edit="with torch.autocast(device.type, torch.bfloat16): around forward and loss; for float16,"
    " torch.amp.GradScaler, too",
    install=install,
)
