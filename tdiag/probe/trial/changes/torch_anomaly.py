"""Autograd's anomaly detection stays off."""

import functools
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import SAME, Change, Trial, at, off

NAME = "torch.anomaly"


def install(trial: Trial, value: bool) -> None:
    import torch

    original = torch.set_anomaly_enabled

    @functools.wraps(original)
    def set_anomaly_enabled(mode: bool, *args: Any, **kwargs: Any) -> None:
        if mode:
            line = caller()
            trial.applied(NAME, f"anomaly detection{at(line)} stays off", line)
        original(False, *args, **kwargs)

    trial.patches.set(torch, "set_anomaly_enabled", hidden(set_anomaly_enabled))


CHANGE = Change(
    name=NAME,
    does="Anomaly detection of autograd stays off.",
    safety=SAME,
    takes="off",
    parse=off,
    absent="the script does not switch on anomaly detection",
    limits="the origin of a NaN is no longer reported",
    edit="torch.autograd.set_detect_anomaly(False)",
    install=install,
)
