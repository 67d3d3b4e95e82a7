"""The model computes in bfloat16 where that is safe (autocast)."""

import functools
from typing import Any

from ..change import ROUNDING, Change, Trial
from ..trained_models import each_model, each_tensor

NAME = "torch.autocast"


def bfloat16(text: str) -> str:
    if text != "bfloat16":
        raise ValueError("takes bfloat16; float16 needs a GradScaler in the script")
    return text


def install(trial: Trial, value: str) -> None:
    """The outermost module's results are float32 again, as the script's loss expects them."""
    import torch

    def cast(result: Any) -> Any:
        return each_tensor(result, lambda x: x.float() if x.dtype is torch.bfloat16 else x)

    def autocast(module: Any, args: Any) -> None:
        kind = next(module.parameters()).device.type
        if torch.is_autocast_enabled(kind):
            trial.refused(NAME, f"{type(module).__name__} is called under autocast already")
            return
        forward = module.forward

        @functools.wraps(forward)
        def lowered(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(kind, torch.bfloat16):
                return cast(forward(*args, **kwargs))

        module.forward = lowered
        trial.applied(NAME, f"{type(module).__name__} under bfloat16 autocast")

    each_model(trial, autocast)


CHANGE = Change(
    name=NAME,
    does="The model computes in bfloat16 where that is safe.",
    safety=ROUNDING,
    takes="bfloat16",
    parse=bfloat16,
    absent="no module was called in training mode with gradients on",
    limits="the loss outside of the model stays in float32; a device without units for bfloat16"
    " gets slower",
    edit="with torch.autocast(device.type, torch.bfloat16): around forward and loss",
    install=install,
)
