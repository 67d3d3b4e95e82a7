"""``zero_grad`` drops gradients and never fills them with zeros."""

import functools
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import ROUNDING, Change, Trial, at

NAME = "optimizer.zero_grad"


def set_to_none(text: str) -> bool:
    if text not in ("", "set_to_none"):
        raise ValueError("takes set_to_none")
    return True


def install(trial: Trial, value: bool) -> None:
    import torch

    for owner in (torch.optim.Optimizer, torch.nn.Module):
        trial.patches.set(owner, "zero_grad", _wrapped(trial, owner.zero_grad))


def _wrapped(trial: Trial, original: Any) -> Any:
    @functools.wraps(original)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        if not set_to_none:
            line = caller()
            trial.applied(NAME, f"zero_grad(){at(line)} drops gradients", line)
        original(self, set_to_none=True)

    return hidden(zero_grad)


CHANGE = Change(
    name=NAME,
    does="zero_grad() drops gradients instead of filling them with zeros.",
    safety=ROUNDING,
    takes="set_to_none",
    parse=set_to_none,
    absent="the script never calls zero_grad(set_to_none=False)",
    limits="gradients that the script zeroes by hand stay; code that reads p.grad after zero_grad()"
    " gets None",
    edit="optimizer.zero_grad(set_to_none=True)",
    install=install,
)
