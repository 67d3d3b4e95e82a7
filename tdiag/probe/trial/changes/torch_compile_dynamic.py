"""torch.compile is called with dynamic=True."""

import functools
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import ROUNDING, Change, Trial, at, switch

NAME = "torch.compile_dynamic"


def install(trial: Trial, value: bool) -> None:
    import torch

    original = torch.compile

    @functools.wraps(original)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dynamic") is not True:
            kwargs["dynamic"] = True
            line = caller()
            trial.applied(NAME, f"torch.compile(){at(line)}: dynamic=True", line)
        return original(*args, **kwargs)

    trial.patches.set(torch, "compile", hidden(compiled))


CHANGE = Change(
    name=NAME,
    does="The script's compiled code is compiled for changing sizes (dynamic=True).",
    safety=ROUNDING,
    parse=switch,
    absent="the script compiles nothing, or has dynamic=True already",
    limits="code that is recompiled for other reasons than a size still is; kernels for any size"
    " are somewhat slower",
    edit="torch.compile(model, dynamic=True)",
    install=install,
)
