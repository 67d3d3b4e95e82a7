"""Convolutions compute in channels-last layout."""

from typing import Any

from ..change import ROUNDING, Change, Trial, switch
from ..trained_models import called, each_model

NAME = "model.channels_last"
IMAGES = 4  # dimensions of a two-dimensional convolution's weight


def install(trial: Trial, value: bool) -> None:
    """A convolution whose weight is channels last returns a channels-last result."""
    import torch

    def turned(module: Any, args: Any) -> None:
        name, form = type(module).__name__, torch.channels_last
        weights = [p for p in module.parameters() if p.dim() == IMAGES]
        if not weights:
            trial.refused(NAME, f"{name} has no two-dimensional convolution")
        elif all(w.is_contiguous(memory_format=form) for w in weights):
            trial.refused(NAME, f"{name} is channels last already")
        else:
            module.to(memory_format=form)
            many = f"{len(weights)} weight{'s' * (len(weights) > 1)}"
            trial.applied(NAME, f"{name}: {many}", *called(module))

    each_model(trial, turned)


CHANGE = Change(
    name=NAME,
    does="Convolutions compute in channels-last layout.",
    safety=ROUNDING,
    parse=switch,
    absent="no module was called in training mode with gradients on",
    limits="the script's batch keeps its layout and is converted at the first convolution",
    edit="model.to(memory_format=torch.channels_last), and the batch likewise",
    install=install,
)
