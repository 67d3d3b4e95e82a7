"""torch may choose algorithms whose results differ from run to run."""

import functools
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import ROUNDING, Change, Trial, at, off

NAME = "torch.deterministic"


def install(trial: Trial, value: bool) -> None:
    import torch

    def stays_off(original: Any, nothing: Any) -> Any:
        @functools.wraps(original)
        def call(mode: Any, **kwargs: Any) -> None:
            if mode not in (False, 0, "default"):
                line = caller()
                trial.applied(NAME, f"{original.__name__}(){at(line)} stays off", line)
            original(nothing, **kwargs)

        return hidden(call)

    for name, nothing in (
        ("use_deterministic_algorithms", False),
        ("set_deterministic_debug_mode", "default"),
    ):
        trial.patches.set(torch, name, stays_off(getattr(torch, name), nothing))

    def cudnn_off() -> None:
        if torch.backends.cudnn.deterministic:
            torch.backends.cudnn.deterministic = False
            trial.applied(NAME, "torch.backends.cudnn.deterministic True → False")

    trial.probe.when_warm(cudnn_off)


CHANGE = Change(
    name=NAME,
    does="torch.use_deterministic_algorithms and cudnn.deterministic stay off.",
    safety=ROUNDING,
    takes="off",
    parse=off,
    absent="the script does not ask for deterministic algorithms",
    limits="results then differ from run to run; environment variables (CUBLAS_WORKSPACE_CONFIG)"
    " stay",
    edit="torch.use_deterministic_algorithms(False)",
    install=install,
)
