"""``torch.save`` is skipped."""

import functools
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import CEILING, TRAINING, Change, Trial, at, switch

NAME = "ceiling.checkpoint"


def install(trial: Trial, value: bool) -> None:
    import torch

    original = torch.save

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> None:
        trial.answer(NAME)
        trial.applied(NAME, f"torch.save(){at(caller())} does nothing")

    for owner in (torch, torch.serialization):
        trial.patches.set(owner, "save", hidden(save))


CHANGE = Change(
    name=NAME,
    does="torch.save is skipped.",
    safety=TRAINING,
    kind=CEILING,
    rare=True,
    parse=switch,
    absent="torch.save was not called",
    limits="copies made before it, and files written by other libraries, stay; a script that reads"
    " its checkpoint again fails",
    install=install,
)
