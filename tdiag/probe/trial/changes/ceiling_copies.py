"""Batches stay on the device: what was copied there once is not copied again."""

import functools
import sys
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import CEILING, TRAINING, Change, Trial, at, switch

NAME = "ceiling.copies"
MOST_KEPT = 64  # copies per line; heuristic: more come from an evaluation and fill the device


class Copies:
    """Copies to a device by source line, kind of tensor, and how many tensors of that kind the line
    had copied since the last step: so the tensors of one batch stay separate."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.kept: dict[Any, list[Any]] = {}
        self.numbers: dict[Any, int] = {}
        self.steps = 0

    def place(self, tensor: Any) -> tuple[list[Any], int] | None:
        """The list that keeps the copy of this tensor, and its index there. None if it must be
        copied: it is on a device already, is trained, or the copy for this step does not exist
        yet."""
        if tensor.device.type != "cpu" or tensor.requires_grad or not self.trial.probe.warm:
            return None
        frame = sys._getframe(2)
        key = frame.f_code, frame.f_lineno, tensor.shape, tensor.dtype
        if self.steps != self.trial.boundary.optimizer_steps:
            self.steps = self.trial.boundary.optimizer_steps
            self.numbers.clear()
        number = self.numbers.get(key, 0)
        self.numbers[key] = number + 1
        return self.kept.setdefault(key, []), number


def install(trial: Trial, value: bool) -> None:
    """Not before discovery has ended: a model moved to its device is not a batch."""
    import torch

    copies = Copies(trial)
    for name in ("to", "cuda"):
        trial.patches.set(torch.Tensor, name, _once(copies, getattr(torch.Tensor, name)))
    trial.patches.set(torch.Tensor, "copy_", _filled_once(trial, torch.Tensor.copy_))


def _once(copies: Copies, original: Any) -> Any:
    @functools.wraps(original)
    def copied(self: Any, *args: Any, **kwargs: Any) -> Any:
        place = copies.place(self)
        if place is None:
            return original(self, *args, **kwargs)
        kept, number = place
        if number < len(kept) and kept[number] is not None:
            copies.trial.answer(NAME)
            return kept[number]
        result = original(self, *args, **kwargs)
        if number == len(kept) < MOST_KEPT:
            moved = result.device.type != "cpu"
            kept.append(result if moved else None)  # a change of dtype alone is not kept
            if moved:
                copies.trial.applied(NAME, f"{original.__name__}(){at(caller())} returns its"
                                     " first copy")  # fmt: skip
        return result

    return hidden(copied)


def _filled_once(trial: Trial, original: Any) -> Any:
    """``copy_()`` into a buffer on the device does nothing after its first call."""

    @functools.wraps(original)
    def copy_(self: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        to_device = self.device.type != "cpu" and getattr(source, "is_cpu", False)
        if not to_device or self.requires_grad or not trial.probe.warm:
            return original(self, source, *args, **kwargs)
        trial.answer(NAME)
        trial.applied(NAME, f"copy_(){at(caller())} does nothing")
        return self

    return hidden(copy_)


CHANGE = Change(
    name=NAME,
    does="Batches stay on the device: each line reuses the first batch that it copied there.",
    safety=TRAINING,
    kind=CEILING,
    rare=True,
    parse=switch,
    absent="nothing was copied to a device after warm-up",
    limits="tensors made from numbers (torch.tensor(..., device=...)) are still copied; reads back"
    " to the host are left out by ceiling.reads",
    install=install,
)
