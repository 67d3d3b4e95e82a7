"""The host does not wait for copies of pinned memory to the device."""

import functools
import sys
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import SAME, Change, Trial, at, switch

NAME = "copies.non_blocking"


def install(trial: Trial, value: bool) -> None:
    import torch

    for name in ("to", "cuda"):
        trial.patches.set(torch.Tensor, name, _not_waited_for(trial, getattr(torch.Tensor, name)))


def _not_waited_for(trial: Trial, original: Any) -> Any:
    known: set[Any] = set()  # lines already reported

    @functools.wraps(original)
    def copied(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != "cpu" or len(args) > 1 or "non_blocking" in kwargs:
            return original(self, *args, **kwargs)
        result = original(self, *args, non_blocking=True, **kwargs)
        frame = sys._getframe(1)
        key = frame.f_code, frame.f_lineno
        if key not in known and result.device.type != "cpu":
            known.add(key)
            trial.probe.guard(say)(self)
        return result

    def say(tensor: Any) -> None:
        line = caller()
        call = f"{original.__name__}(){at(line)}"
        if tensor.is_pinned():
            trial.applied(NAME, f"{call} does not wait", line)
        else:
            trial.refused(NAME, f"{call} copies from pageable memory; add loader.pin_memory", line)

    return hidden(copied)


CHANGE = Change(
    name=NAME,
    does="Tensor.to() and cuda() do not wait for copies from pinned memory (non_blocking=True).",
    safety=SAME,
    parse=switch,
    absent="no tensor was copied to a device, or all copies are non_blocking already",
    limits="a script that writes to the host's tensor during the copy gets other numbers; the host"
    " still waits for copies from pageable memory",
    edit="batch.to(device, non_blocking=True)",
    install=install,
)
