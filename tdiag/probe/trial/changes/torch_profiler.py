"""The script's own torch.profiler stays off."""

from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import SAME, Change, Trial, at, off

NAME = "torch.profiler"


def install(trial: Trial, value: bool) -> None:
    import torch

    def enter(self: Any) -> Any:
        trial.applied(NAME, f"the profiler{at(caller())} stays off")
        return self

    def start(self: Any) -> None:
        trial.applied(NAME, f"the profiler{at(caller())} stays off")

    def nothing(self: Any, *args: Any, **kwargs: Any) -> None:
        pass

    kineto, old = torch.profiler.profile, torch.autograd.profiler.profile
    for owner in (kineto, old):
        trial.patches.set(owner, "__enter__", hidden(enter))
        trial.patches.set(owner, "__exit__", hidden(nothing))
    trial.patches.set(kineto, "start", hidden(start))
    for name in ("stop", "step"):
        trial.patches.set(kineto, name, hidden(nothing))


CHANGE = Change(
    name=NAME,
    does="The script's own torch.profiler stays off.",
    safety=SAME,
    takes="off",
    parse=off,
    absent="the script does not run torch.profiler",
    limits="a script that reads the profile during training fails",
    edit="remove torch.profiler.profile, or give it a schedule that ends",
    install=install,
)
