"""The model, or one of the user's functions, is compiled by torch.compile."""

from typing import Any

from ..change import ROUNDING, Change, Trial, function_or_nothing
from ..frozen import replace_by_name
from ..trained_models import called, each_model

NAME = "torch.compile"


def install(trial: Trial, value: str) -> None:
    if value:
        _function(trial, value)
        return

    def compiled(module: Any, args: Any) -> None:
        if module._compiled_call_impl is None:
            module.compile()  # in place, from its next call on
            random = ", whose dropout then draws other random numbers" if _drops(module) else ""
            trial.applied(NAME, f"compiled {type(module).__name__}{random}", *called(module))
        else:
            trial.refused(NAME, f"{type(module).__name__} is compiled already")

    each_model(trial, compiled)


def _drops(module: Any) -> bool:
    """Whether dropout is on in it. Compiled code draws its random numbers in another order."""
    from torch.nn.modules.dropout import _DropoutNd

    return any(isinstance(part, _DropoutNd) and part.p > 0 for part in module.modules())


def _function(trial: Trial, spec: str) -> None:
    """Compiled from its second call on: the first shows whether training steps happen inside it."""
    import torch

    forms: list[Any] = []  # the compiled function

    def answer(original: Any, args: Any, kwargs: Any) -> Any:
        if forms:
            return forms[0](*args, **kwargs)
        before = trial.boundary.optimizer_steps, trial.backwards
        result = original(*args, **kwargs)
        if forms:  # a recursive call
            return result
        if (trial.boundary.optimizer_steps, trial.backwards) != before:
            forms.append(original)
            trial.refused(NAME, f"{spec} trains: training steps happen inside it")
        else:
            forms.append(torch.compile(original))
            trial.applied(NAME, f"compiled {spec}")
        return result

    look = replace_by_name(trial, NAME, spec, answer)
    trial.waits[NAME] = lambda: look() and bool(forms)


CHANGE = Change(
    name=NAME,
    does="torch.compile compiles the model, or the named function or method.",
    safety=ROUNDING,
    takes="FILE.py:FUNCTION, or nothing for the model",
    parse=function_or_nothing,
    absent="no module was called in training mode with gradients on; by name: no such function, or"
    " it was not called",
    limits="without a name, code outside modules (a loss function, an optimizer) is not compiled;"
    " code that dynamo does not support stays Python",
    edit="model.compile(), or loss_fn = torch.compile(loss_fn), before the training loop",
    install=install,
)
