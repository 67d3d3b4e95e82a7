"""The loss is replaced by a sum of its inputs."""

import functools
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import CEILING, TRAINING, Change, Trial, at, function_or_nothing
from ..frozen import replace_by_name

NAME = "ceiling.loss"


def install(trial: Trial, value: str) -> None:
    if value:
        _named(trial, value)
        return
    import torch
    from torch.nn import functional

    names = [n for n in dir(functional) if n.endswith(("_loss", "entropy", "_with_logits"))]
    names.append("kl_div")
    for name in names:
        original = getattr(functional, name, None)
        if callable(original):
            trial.patches.set(functional, name, _summed(trial, original, torch))


def _summed(trial: Trial, original: Any, torch: Any) -> Any:
    @functools.wraps(original)
    def summed(*args: Any, **kwargs: Any) -> Any:
        total = _sum(torch, (*args, *kwargs.values()))
        if total is None or kwargs.get("reduction") == "none":
            return original(*args, **kwargs)
        trial.answer(NAME)
        trial.applied(NAME, f"{original.__name__}{at(caller())} is a sum of its inputs")
        return total

    return hidden(summed)


def _named(trial: Trial, spec: str) -> None:
    import torch

    def answer(original: Any, args: Any, kwargs: Any) -> Any:
        total = _sum(torch, (*args, *kwargs.values()))
        if total is None:
            return original(*args, **kwargs)
        trial.answer(NAME)
        trial.applied(NAME, f"{spec} is a sum of its inputs")
        return total

    trial.waits[NAME] = replace_by_name(trial, NAME, spec, answer)


def _sum(torch: Any, values: Any) -> Any:
    """Times zero, so that the weights stay finite; None where no input carries gradients."""
    graded = [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad]
    return sum(v.sum() * 0.0 for v in graded) if graded else None


CHANGE = Change(
    name=NAME,
    does="The loss is replaced by a sum of its inputs.",
    safety=TRAINING,
    kind=CEILING,
    takes="FILE.py:FUNCTION, or nothing for torch's own losses",
    parse=function_or_nothing,
    absent="no loss function of torch was called; name one of yours: ceiling.loss=FILE.py:FUNCTION",
    limits="a loss written in the loop itself stays, and so does one that returns more than"
    " a number",
    install=install,
)
