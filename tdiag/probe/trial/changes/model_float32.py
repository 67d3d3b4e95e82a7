"""A float64 model computes in float32."""

import functools
from typing import Any

from ...patches import hidden
from ..change import ROUNDING, Change, Trial, switch
from ..trained_models import each_model, each_tensor

NAME = "model.float32"


def install(trial: Trial, value: bool) -> None:
    """The outermost module still returns float64, as the script's loss expects. What its forward
    makes float64 itself (``x.double()``) is float32."""
    import torch

    inside = 0  # forwards of float64 models that run now
    to, double = torch.Tensor.to, torch.Tensor.double

    def cast(values: Any, before: Any, now: Any) -> Any:
        return each_tensor(values, lambda x: to(x, now) if x.dtype is before else x)

    def narrow(module: Any, args: Any) -> Any:
        nonlocal inside
        wide = [p for p in module.parameters() if p.dtype is torch.float64]
        name = type(module).__name__
        if not wide:
            trial.refused(NAME, f"{name} has no parameter of float64")
            return None
        module.float()
        forward = module.forward
        first = True

        @functools.wraps(forward)
        def narrowed(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside, first
            inside += not first
            first = False
            args, kwargs = cast((args, kwargs), torch.float64, torch.float32)
            try:
                return cast(forward(*args, **kwargs), torch.float32, torch.float64)
            finally:
                inside -= 1

        module.forward = narrowed
        trial.applied(NAME, f"{name}: {len(wide)} parameter{'s' * (len(wide) > 1)} of float32")
        inside += 1  # this call's forward still runs without the change, until the next begins
        return cast(args, torch.float64, torch.float32)

    @functools.wraps(to)
    def narrowing(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if inside:
            args, kwargs = _without(torch.float64, torch.float32, args, kwargs)
        return to(tensor, *args, **kwargs)

    @functools.wraps(double)
    def single(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return (torch.Tensor.float if inside else double)(tensor, *args, **kwargs)

    trial.patches.set(torch.Tensor, "to", hidden(narrowing))
    trial.patches.set(torch.Tensor, "double", hidden(single))
    each_model(trial, narrow)


def _without(wide: Any, narrow: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with another dtype."""
    return (
        tuple(narrow if x is wide else x for x in args),
        {name: narrow if x is wide else x for name, x in kwargs.items()},
    )


CHANGE = Change(
    name=NAME,
    does="A float64 model computes in float32.",
    safety=ROUNDING,
    parse=switch,
    absent="no module was called in training mode with gradients on",
    limits="batches and the loss stay float64; a script that loads an optimizer's state from a"
    " checkpoint fails, and so does a forward that makes new tensors of float64",
    edit="model.float(), and the batch likewise",
    install=install,
)
