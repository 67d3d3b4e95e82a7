"""Slices that are taken one by one from a tensor come from one ``unbind``."""

import functools
import weakref
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import SAME, Change, Trial, at, switch

NAME = "model.slices_at_once"
MOST_SLICES = 4096  # of one tensor


class SlicesTaken:
    """Of tensors that record gradients, until the next step. ``first``: for a tensor and a
    dimension, which slice was taken first; ``parts``: all, from the second slice on."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.first: dict[tuple[int, int], tuple[Any, int, int]] = {}
        self.parts: dict[tuple[int, int], Any] = {}

    def forget(self, *_: Any) -> None:
        """They hold the graph of the step."""
        self.first.clear()
        self.parts.clear()

    def taken(self, tensor: Any, index: Any) -> Any:
        """The slice, or None where it shall be taken as the script does."""
        number, dim = _numbered(index)
        if number is None or not _recorded(tensor) or dim >= tensor.dim():
            return None
        size = tensor.shape[dim]
        number += size if number < 0 else 0
        if not 0 <= number < size <= MOST_SLICES:
            return None
        key = id(tensor), dim
        known = self.first.get(key)
        if known is None or known[0]() is not tensor or known[1] != tensor._version:
            self.first[key] = weakref.ref(tensor), tensor._version, number
            self.parts.pop(key, None)
            return None  # one slice alone costs no more
        if key not in self.parts:
            if number == known[2]:
                return None
            line = caller()
            self.trial.applied(NAME, f"slices{at(line)} come from one unbind({dim})", line)
            self.parts[key] = tensor.unbind(dim)
        return self.parts[key][number]


def _numbered(index: Any) -> tuple[int | None, int]:
    """``x[3]``: 3 and dimension 0; ``x[:, :, 3]``: 3 and 2; None for any other index."""
    *before, last = index if isinstance(index, tuple) else (index,)
    whole = all(isinstance(part, slice) and part == slice(None) for part in before)
    return (last if type(last) is int and whole else None), len(before)


def _recorded(tensor: Any) -> bool:
    import torch

    return (
        type(tensor) is torch.Tensor
        and tensor.requires_grad
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )


def install(trial: Trial, value: bool) -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    slices = SlicesTaken(trial)
    original: Any = torch.Tensor.__getitem__
    taken = trial.probe.guard(slices.taken)

    @functools.wraps(original)
    def getitem(self: Any, index: Any) -> Any:
        part = taken(self, index)
        return original(self, index) if part is None else part

    trial.patches.set(torch.Tensor, "__getitem__", hidden(getitem))
    register_optimizer_step_post_hook(trial.probe.guard(slices.forget))


CHANGE = Change(
    name=NAME,
    does="Slices x[:, 0], x[:, 1], … of a tensor with gradients come from one x.unbind(1).",
    safety=SAME,
    parse=switch,
    absent="no tensor with gradients was seen from which slices are taken one by one by number",
    limits="not for ranges, x[:, indices] or select(); a script that changes such a slice in place"
    " fails",
    edit="for part in x.unbind(1): instead of x[:, t] for each t",
    install=install,
)
