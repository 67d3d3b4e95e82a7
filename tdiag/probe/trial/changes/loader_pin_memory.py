"""DataLoaders put batches into pinned memory."""

from typing import Any

from ..change import SAME, Change, Trial, switch
from ..loader_arguments import argument

NAME = "loader.pin_memory"


def install(trial: Trial, value: Any) -> None:
    from ... import accelerator

    if not accelerator.cuda_possible():
        trial.refused(NAME, "there is no device to copy to")
        return
    argument("pin_memory")(trial, value)


CHANGE = Change(
    name=NAME,
    does="DataLoaders put batches into pinned memory.",
    safety=SAME,
    parse=switch,
    absent="no DataLoader was made",
    limits="copies overlap with computation only if they also have non_blocking=True",
    edit="DataLoader(..., pin_memory=True)",
    install=install,
)
