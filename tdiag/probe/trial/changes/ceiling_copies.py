"""Batches stay on the device: what was copied there once is not copied again."""

import functools
import sys
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import CEILING, TRAINING, Change, Trial, at, switch

NAME = "ceiling.copies"
MOST_KEPT = 64  # copies of one line; heuristic: more are an evaluation's, and fill the device


class Copies:
    """What was copied to a device, by line, kind of tensor, and how many of that kind the line had
    copied since the last step: the tensors of one batch stay apart."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.kept: dict[Any, list[Any]] = {}
        self.numbers: dict[Any, int] = {}
        self.steps = 0

    def place(self, tensor: Any) -> tuple[list[Any], int] | None:
        """Where the copy of this tensor is kept, and as the how-manyth; None where it is to be
        copied: it is on a device, is trained, or what the step needs is not made yet."""
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
    """Not before discovery has ended: a model that moves to its device is no batch."""
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
            kept.append(result if moved else None)  # one that changes its type only is not kept
            if moved:
                copies.trial.applied(NAME, f"{original.__name__}(){at(caller())} answers with its"
                                     " first copy")  # fmt: skip
        return result

    return hidden(copied)


def _filled_once(trial: Trial, original: Any) -> Any:
    """A buffer on the device keeps what it holds."""

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
