"""``.item()``, ``float()`` and ``print`` are answered without waiting for the value."""

import builtins
import functools
import os
import sys
from typing import Any

from ...patches import hidden
from ...places import caller, reader
from ..change import CEILING, TRAINING, Change, Trial, at, switch

NAME = "ceiling.reads"
READS = ("item", "tolist", "__float__")


def install(trial: Trial, value: bool) -> None:
    import torch

    torchs = os.path.join(os.path.dirname(torch.__file__), "")
    for name in READS:
        original = getattr(torch.Tensor, name)
        trial.patches.set(torch.Tensor, name, _answered(trial, original, torchs))
    trial.patches.set(builtins, "print", hidden(_silent(trial)))


def _answered(trial: Trial, original: Any, torchs: str) -> Any:
    """Each line that reads a value gets the first value it read. Reads inside torch (Adam reads its
    step count on a CPU) stay: torch needs the value."""
    kept: dict[Any, Any] = {}

    @functools.wraps(original)
    def read(self: Any) -> Any:
        frame = reader(sys._getframe(1), torchs)
        if frame is None:
            return original(self)
        key = frame.f_code, frame.f_lineno
        if key not in kept:
            kept[key] = original(self)
            trial.applied(NAME, f"{original.__name__}(){at(caller())} returns its first value")
        else:
            trial.answer(NAME)
        return kept[key]

    return hidden(read)


def _silent(trial: Trial) -> Any:
    def silent(*args: Any, **kwargs: Any) -> None:
        trial.answer(NAME)

    return silent


CHANGE = Change(
    name=NAME,
    does=".item(), .tolist(), float() and print() return without waiting for the value.",
    safety=TRAINING,
    kind=CEILING,
    parse=switch,
    absent="no value of a tensor was read",
    limits="bool() and .cpu() stay, because the script decides by them; torch's own reads stay; a"
    " loop that waits for a value never ends",
    install=install,
)
