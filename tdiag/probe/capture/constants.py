"""What a step computes only from constants: the same result in every step.

A constant is a tensor that an earlier counted step received unchanged (a buffer, a frozen weight,
an attribute), a tensor made without data (``arange``, ``ones``, ``eye``), or the result of the same
call with the same numbers on constants as in the previous step: a mask, a positional encoding, a
normalised adjacency matrix. So nothing is constant in the first counted step. Making a tensor
without data is not counted, because a buffer to be filled must be new in each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..by_tensor import MOST_TRACKED, ByTensor
from ..models import plain
from .frozen_weights import DROPOUTS, RANDOM, changes, flat, tensors_in

if TYPE_CHECKING:
    from ..core import Probe

MADE = {
    "arange", "eye", "full", "full_like", "linspace", "logspace", "ones", "ones_like",
    "tril_indices", "triu_indices", "zeros", "zeros_like",
}  # fmt: skip
PLAIN = (int, float, complex, str, slice, type(None), type(...), torch.dtype, torch.device)
NOT, MAYBE, SURE = range(3)


class Constants:
    """One per process, because steps of different windows are compared. ``steps``: counted steps
    that could be compared with an earlier one."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.given: ByTensor[tuple[int, int]] = ByTensor()  # version, first step
        self.calls: dict[
            Any, int
        ] = {}  # (place, name, how often in its step) → hash of its numbers
        self.made: ByTensor[int] = ByTensor()  # made in this step: how constant
        self.ordinals: dict[Any, int] = {}
        self.step, self.steps = -1, 0

    def begin(self) -> None:
        """A window begins."""
        self.steps = 0

    def seen(self, name: str, args: Any, kwargs: Any, result: Any, place: Any) -> bool:
        """A call returned. Returns whether it computed something only from constants."""
        if self.step != self.probe.step:
            self.steps += bool(self.calls)
            self.step = self.probe.step
            self.made.clear()
            self.ordinals.clear()
        made = [value for value in flat((result,)) if isinstance(value, torch.Tensor)]
        given = list(tensors_in(args, kwargs))
        level = min([self._level(tensor) for tensor in given], default=SURE)
        changing = changes(name)
        none = name in RANDOM or name in DROPOUTS or not (given or name in MADE)
        if none or any(value.requires_grad for value in made):
            level = NOT
        if level:
            level = min(level, self._same_numbers(place, name, args, kwargs))
        for value in (*made, *(given[:1] if changing else ())):
            self.made.keep(value, level)
        return bool(level == SURE and given and made and not changing)

    def _level(self, tensor: Any) -> int:
        made = self.made.get(tensor)
        if made is not None:
            return made
        if tensor.requires_grad or not plain(tensor) or tensor.is_inference():
            return NOT
        before = self.given.get(tensor)
        if before is not None and before[0] == tensor._version:
            return SURE if before[1] < self.probe.step else MAYBE
        self.given.keep(tensor, (tensor._version, self.probe.step))
        return MAYBE

    def _same_numbers(self, place: Any, name: str, args: Any, kwargs: Any) -> int:
        """Whether the previous step made this call with the same numbers, or it is unknown."""
        key = place, name
        ordinal = self.ordinals[key] = self.ordinals.get(key, 0) + 1
        given = flat((*args, *kwargs.items()))
        numbers = hash("".join(_text(v) for v in given if not isinstance(v, torch.Tensor)))
        before = self.calls.get((place, name, ordinal))
        if len(self.calls) < MOST_TRACKED:
            self.calls[place, name, ordinal] = numbers
        return SURE if before == numbers else MAYBE if before is None else NOT


def _text(value: Any) -> str:
    """Other objects are distinguished by identity: two lists are not the same numbers."""
    return repr(value) if isinstance(value, PLAIN) else f"{type(value).__name__} {id(value)}"
