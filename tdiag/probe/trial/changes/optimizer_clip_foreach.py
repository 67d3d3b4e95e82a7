"""Gradients are clipped in a few calls."""

import functools
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import ROUNDING, Change, Trial, at, switch

NAME = "optimizer.clip_foreach"
FOREACH_AT = {"clip_grad_norm_": 4, "clip_grad_value_": 2}  # its position among the arguments


def install(trial: Trial, value: bool) -> None:
    from torch.nn import utils
    from torch.nn.utils import clip_grad

    for name, position in FOREACH_AT.items():
        clip = _in_few_calls(trial, getattr(clip_grad, name), position)
        for owner in (utils, clip_grad):
            trial.patches.set(owner, name, clip)


def _in_few_calls(trial: Trial, original: Any, position: int) -> Any:
    @functools.wraps(original)
    def clip(*args: Any, **kwargs: Any) -> Any:
        foreach = args[position] if len(args) > position else kwargs.get("foreach")
        if foreach is not False:
            return original(*args, **kwargs)
        line = caller()
        trial.applied(NAME, f"{original.__name__}(){at(line)}: foreach=True", line)
        return original(*args[:position], **{**kwargs, "foreach": True})

    return hidden(clip)


CHANGE = Change(
    name=NAME,
    does="clip_grad_norm_() and clip_grad_value_() clip all gradients in a few calls.",
    safety=ROUNDING,
    parse=switch,
    absent="no gradients are clipped with foreach=False",
    limits="a loop that clips each parameter separately stays, because one call clips another norm",
    edit="torch.nn.utils.clip_grad_norm_(model.parameters(), limit), without foreach=False",
    install=install,
)
