"""The optimizer's step is skipped."""

from typing import Any

from ..change import CEILING, TRAINING, Change, Trial, switch
from ..optimizers import each_step

NAME = "ceiling.optimizer"
FIRST = 2  # steps that do run: the first creates the optimizer's state


def install(trial: Trial, value: bool) -> None:
    import torch

    steps: dict[int, int] = {}

    def skipped(step: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
        steps[id(optimizer)] = steps.get(id(optimizer), 0) + 1
        if steps[id(optimizer)] <= FIRST:
            return step(optimizer, *args, **kwargs)
        trial.answer(NAME)
        trial.applied(NAME, f"{type(optimizer).__name__}.step() does nothing")
        closure = args[0] if args else kwargs.get("closure")
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    each_step(trial, skipped)


CHANGE = Change(
    name=NAME,
    does="The optimizer's step is skipped.",
    safety=TRAINING,
    kind=CEILING,
    parse=switch,
    absent="no optimizer made a step",
    limits="a closure is still called, once; an update without torch.optim is not recognised",
    install=install,
)
