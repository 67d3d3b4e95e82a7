"""The function that evaluates the model returns its earlier result."""

import functools
import gc
import sys
import types
from typing import Any

from ...patches import hidden
from ...wire import is_user_file
from ..change import CEILING, TRAINING, Change, Trial, switch
from ..frozen import Frozen

NAME = "ceiling.evaluation"


def install(trial: Trial, value: bool) -> None:
    """Freezes the outermost user function that calls ``model.eval()`` and in which no training step
    happens."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    original = torch.nn.Module.train
    training: set[Any] = set()  # code objects of functions in which an optimizer steps
    done: list[Any] = []

    def stepped(*_: Any) -> None:
        if not training:
            training.update(_user_code())
            handle.remove()

    handle = register_optimizer_step_post_hook(stepped)

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        if not mode and training and not done:
            trial.probe.guard(look)()
        return original(self, mode)

    def look() -> None:
        found = None
        for code in _user_code():
            if code in training or code.co_name.startswith("<"):
                break
            found = code
        if found is None:
            trial.refused(NAME, "the evaluation is not in its own function")
            return
        for function in gc.get_referrers(found):
            if isinstance(function, types.FunctionType) and function.__code__ is found:
                done.append(Frozen(trial, NAME, function, found.co_name))
                return

    trial.patches.set(torch.nn.Module, "train", hidden(train))
    trial.waits[NAME] = lambda: bool(done and (done[0].kept or done[0].reason))


def _user_code() -> list[Any]:
    """Code objects of the user's frames above this call, innermost first."""
    frame: Any = sys._getframe(1)
    found = []
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            found.append(frame.f_code)
        frame = frame.f_back
    return found


CHANGE = Change(
    name=NAME,
    does="The function that evaluates the model returns its earlier result.",
    safety=TRAINING,
    kind=CEILING,
    rare=True,
    parse=switch,
    absent="no function calls model.eval() between training steps",
    limits="an evaluation written in the training loop itself stays: name its function (--freeze)",
    install=install,
)
