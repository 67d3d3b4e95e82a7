"""The optimizer's step is skipped."""

import functools
from typing import Any

from ...patches import hidden
from ..change import CEILING, TRAINING, Change, Trial, switch

NAME = "ceiling.optimizer"
FIRST = 2  # steps that are taken: state is made in the first


def install(trial: Trial, value: bool) -> None:
    """Every class of optimizers gets its ``step`` wrapped by torch when the first one is made; the
    hooks that count steps lie outside of what is skipped."""
    import torch

    original = torch.optim.Optimizer.profile_hook_step
    steps: dict[int, int] = {}

    def skipping(step: Any) -> Any:
        @functools.wraps(step)
        def skipped(self: Any, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
            steps[id(self)] = steps.get(id(self), 0) + 1
            if steps[id(self)] <= FIRST:
                return (
                    step(self, closure, *args, **kwargs) if closure else step(self, *args, **kwargs)
                )
            trial.answer(NAME)
            trial.applied(NAME, f"{type(self).__name__}.step() does nothing")
            if closure is None:
                return None
            with torch.enable_grad():
                return closure()

        return hidden(skipped)

    def profile_hook_step(step: Any) -> Any:
        return original(skipping(step))

    trial.patches.set(torch.optim.Optimizer, "profile_hook_step", staticmethod(profile_hook_step))


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
