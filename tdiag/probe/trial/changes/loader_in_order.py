"""Batches that are ready come first."""

import inspect
from typing import Any

from ..change import TRAINING, Change, Trial, off
from ..loader_arguments import argument

NAME = "loader.in_order"


def install(trial: Trial, value: Any) -> None:
    from torch.utils.data import DataLoader

    if "in_order" in inspect.signature(DataLoader.__init__).parameters:
        argument("in_order")(trial, False)
    else:
        trial.refused(NAME, "DataLoader has no in_order before torch 2.6")


CHANGE = Change(
    name=NAME,
    does="Batches that are ready do not wait for a slow one before them (in_order=False).",
    safety=TRAINING,
    takes="off",
    parse=off,
    absent="no DataLoader was made",
    limits="the order of batches differs from run to run; slow samples come later",
    edit="DataLoader(..., in_order=False)",
    install=install,
)
