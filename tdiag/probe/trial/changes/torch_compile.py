"""The model is compiled by torch.compile."""

from typing import Any

from ..change import ROUNDING, Change, Trial, switch
from ..trained_models import called, each_model

NAME = "torch.compile"


def install(trial: Trial, value: bool) -> None:
    def compiled(module: Any, args: Any) -> None:
        if module._compiled_call_impl is None:
            module.compile()  # in place, from its next call on
            trial.applied(NAME, f"compiled {type(module).__name__}", *called(module))
        else:
            trial.refused(NAME, f"{type(module).__name__} is compiled already")

    each_model(trial, compiled)


CHANGE = Change(
    name=NAME,
    does="The model is compiled by torch.compile.",
    safety=ROUNDING,
    parse=switch,
    absent="no module was called in training mode with gradients on",
    cannot="code outside of modules (a loss function, an optimizer) is not compiled",
    edit="model.compile() before the training loop",
    install=install,
)
