"""A float64 model computes in float32."""

import functools
from typing import Any

from ..change import ROUNDING, Change, Trial, switch
from ..trained_models import each_model, each_tensor

NAME = "model.float32"


def install(trial: Trial, value: bool) -> None:
    """The outermost module still returns float64, as the script's loss expects."""
    import torch

    def cast(values: Any, before: Any, now: Any) -> Any:
        return each_tensor(values, lambda x: x.to(now) if x.dtype is before else x)

    def narrow(module: Any, args: Any) -> Any:
        wide = [p for p in module.parameters() if p.dtype is torch.float64]
        name = type(module).__name__
        if not wide:
            trial.refused(NAME, f"{name} has no parameter of float64")
            return None
        module.float()
        forward = module.forward

        @functools.wraps(forward)
        def narrowed(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = cast((args, kwargs), torch.float64, torch.float32)
            return cast(forward(*args, **kwargs), torch.float32, torch.float64)

        module.forward = narrowed
        trial.applied(NAME, f"{name}: {len(wide)} parameter{'s' * (len(wide) > 1)} of float32")
        return cast(args, torch.float64, torch.float32)  # this call still runs without the change

    each_model(trial, narrow)


CHANGE = Change(
    name=NAME,
    does="A float64 model computes in float32.",
    safety=ROUNDING,
    parse=switch,
    absent="no module was called in training mode with gradients on",
    limits="batches and the loss stay float64; a script that loads an optimizer's state from a"
    " checkpoint fails",
    edit="model.float(), and the batch likewise",
    install=install,
)
