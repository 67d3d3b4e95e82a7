"""Modules in evaluation mode record no gradients."""

from typing import Any

from ...places import caller
from ..change import SAME, Change, Trial, at, switch
from ..evaluations import each_evaluation

NAME = "evaluation.no_grad"


def install(trial: Trial, value: bool) -> None:
    import torch

    def around(module: Any) -> Any:
        if torch.is_grad_enabled() and not module.training:
            line = caller()
            trial.applied(NAME, f"{type(module).__name__} called{at(line)} under no_grad", line)
        return torch.set_grad_enabled(torch.is_grad_enabled() and module.training)

    each_evaluation(trial, around)


CHANGE = Change(
    name=NAME,
    does="Modules in evaluation mode record no gradients.",
    safety=SAME,
    parse=switch,
    absent="no module in evaluation mode was called with gradients on",
    limits="a model that is trained in evaluation mode (frozen batch norm) no longer trains; one"
    " evaluated in training mode is not recognised",
    edit="with torch.no_grad(): around the evaluation",
    install=install,
)
