"""Modules in evaluation mode are called under inference mode."""

from typing import Any

from ...places import caller
from ..change import SAME, Change, Trial, at, switch
from ..evaluations import each_evaluation

NAME = "evaluation.inference_mode"


def install(trial: Trial, value: bool) -> None:
    import torch

    def around(module: Any) -> Any:
        there = module.training or torch.is_inference_mode_enabled()
        if not there:
            line = caller()
            said = f"{type(module).__name__} called{at(line)} under inference_mode"
            trial.applied(NAME, said, line)
        return torch.inference_mode(torch.is_inference_mode_enabled() or not there)

    each_evaluation(trial, around)


CHANGE = Change(
    name=NAME,
    does="Modules in evaluation mode are called under inference mode.",
    safety=SAME,
    parse=switch,
    absent="no module in evaluation mode was called outside inference mode",
    limits="the script fails if it trains on the results (a teacher's, an agent's); cannot be"
    " combined with evaluation.no_grad; a model evaluated in training mode is not recognised",
    edit="with torch.inference_mode(): around the evaluation",
    install=install,
)
