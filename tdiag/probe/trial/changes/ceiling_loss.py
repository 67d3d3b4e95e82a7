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

    first: list[Any] = []  # what the function's first call returned, with losses as _Loss
    refused: list[str] = []

    def answer(original: Any, args: Any, kwargs: Any) -> Any:
        total = _sum(torch, (*args, *kwargs.values()))
        if total is None or refused:
            return original(*args, **kwargs)
        if not first:
            result = original(*args, **kwargs)
            kept = _each(result, lambda value: _loss_or_value(torch, value))
            if reason := _cannot(torch, kept):
                refused.append(reason)
                trial.refused(NAME, f"{spec} {reason}")
                return result
            first.append(kept)
        trial.answer(NAME)
        trial.applied(NAME, f"{spec} is a sum of its inputs")
        return _each(first[0], lambda x: total.reshape(x.shape) if isinstance(x, _Loss) else x)

    trial.waits[NAME] = replace_by_name(trial, NAME, spec, answer)


class _Loss:
    """A number that carries gradients."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape


def _loss_or_value(torch: Any, value: Any) -> Any:
    graded = isinstance(value, torch.Tensor) and value.requires_grad
    return _Loss(value.shape) if graded and value.numel() == 1 else value


def _cannot(torch: Any, kept: Any) -> str:
    """Why this result of a function cannot be left out; "" if it can."""
    found: list[Any] = []
    _each(kept, found.append)
    if any(isinstance(x, torch.Tensor) and x.requires_grad for x in found):
        return "returns a tensor with gradients that is not one number"
    return "" if any(isinstance(x, _Loss) for x in found) else "returns no loss with gradients"


def _each(value: Any, change: Any) -> Any:
    """The value, or each one in nested tuples, lists and dictionaries, changed."""
    if type(value) in (tuple, list):
        return type(value)(_each(x, change) for x in value)
    if type(value) is dict:
        return {key: _each(x, change) for key, x in value.items()}
    return change(value)


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
    limits="a loss written in the loop itself stays, and so does one that returns a tensor of"
    " several numbers with gradients",
    install=install,
)
