"""What values hold, in a few words: equal words, equal contents, as far as a sample tells."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterable
from typing import Any

import torch

from .models import plain
from .places import is_users_module

MOST_PARTS, DEEPEST = 256, 6  # values looked at of one argument or result, and how deep
PER_TENSOR = 256  # numbers of a tensor or an array; besides, the sum of all
MOST_SUMMED = 1 << 21  # numbers: a millisecond
NUMBERS = (bool, int, float, complex)
# A result this short (a flag, a path) may be that of a function that does something else.
LEAST_INTEGERS, LEAST_LETTERS = 8, 256


class Unreadable(Exception):
    """Its content is not known."""


def of_arguments(values: Iterable[Any], alive: dict[int, Any]) -> tuple[Any, ...]:
    """Objects whose content cannot be read are told apart by their ids, and kept in ``alive``, so
    that no other object gets the id."""
    return tuple(_ContentReader(alive).read(value) for value in values)


def of_result(value: Any) -> tuple[Any, float] | None:
    """The content, and how much it says: 1 if it is no answer that many questions have, less for a
    short list or text. None for a number alone or nothing, or if a part of it cannot be read or has
    gradients."""
    if value is None or isinstance(value, NUMBERS):
        return None
    reader = _ContentReader(None)
    try:
        return reader.read(value), reader.told
    except Unreadable:
        return None


def size_of(value: Any, depth: int = 3) -> int:
    """Bytes of the tensors, arrays, texts and numbers in it."""
    if isinstance(value, (list, tuple, dict)) and depth:
        inside = value.values() if isinstance(value, dict) else value
        return sum(size_of(part, depth - 1) for part in inside)
    if isinstance(value, (str, bytes, *NUMBERS)):
        return sys.getsizeof(value)
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0


class _ContentReader:
    def __init__(self, alive: dict[int, Any] | None) -> None:
        self.alive, self.left = alive, MOST_PARTS
        self.told = 0.0  # 1: as much as a result must say
        self.depth = 0

    def read(self, value: Any) -> Any:
        self.left -= 1
        self.depth += 1
        try:
            return self._read(value)
        finally:
            self.depth -= 1

    def _read(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in NUMBERS:
            whole = kind is not float or value.is_integer()
            self.told += 1 / LEAST_INTEGERS if whole else 1
            return kind, repr(value)  # NaN is not equal to itself
        if kind in (str, bytes):
            self.told += len(value) / LEAST_LETTERS
            return kind, len(value), hash(value)
        if kind in (list, tuple):
            return kind, len(value), self._some(value)
        if kind is dict:
            return kind, len(value), self._some(value), self._some(list(value.values()))
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if kind.__module__ == "numpy":
            return self._numpy(value)
        if isinstance(value, pathlib.PurePath):
            return kind, str(value)
        return self._object(value)

    def _some(self, values: Any) -> Any:
        """Of many parts, some that are spread over all."""
        if self.depth > DEEPEST:
            return ()
        step = max(1, len(values) // max(1, self.left))
        return tuple(self.read(part) for part in list(values)[::step] if self.left > 0)

    def _object(self, value: Any) -> Any:
        """Its id, and what a method of it may read and change: weights, attributes of the
        user's."""
        if self.alive is None:
            raise Unreadable
        self.alive[id(value)] = value
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return id(value), None
        if isinstance(value, torch.nn.Module) and "_modules" in attributes:  # its base is made
            weights = (*value.parameters(), *value.buffers())
            return id(value), sum(tensor._version for tensor in weights)
        mine = self.depth <= DEEPEST and self.left > 0 and is_users_module(type(value).__module__)
        return id(value), self.read(attributes) if mine and type(attributes) is dict else None

    def _tensor(self, value: torch.Tensor) -> Any:
        with torch._C.DisableTorchFunction(), torch.no_grad():  # runs none of a subclass's code
            known = plain(value) and value.device.type == "cpu"
            if self.alive is None and (not known or value.requires_grad):
                raise Unreadable
            if not known:
                return id(value), value._version
            self.told += value.numel() / LEAST_INTEGERS
            sample = value.detach()[_spread(value.shape)].flatten().tolist()
            whole = value.detach().sum().item() if value.numel() <= MOST_SUMMED else 0
        return str(value.dtype), tuple(value.shape), hash(repr((sample, whole)))

    def _numpy(self, value: Any) -> Any:
        dtype = getattr(value, "dtype", None)
        if dtype is None or dtype.kind not in "biufcSUmM":
            return self._object(value)
        self.told += value.size / LEAST_INTEGERS
        sample = value[_spread(value.shape)].tolist() if value.shape else value.item()
        sums = dtype.kind in "biufc" and value.size <= MOST_SUMMED
        whole = value.sum().item() if sums else 0
        return str(dtype), value.shape, hash(repr((sample, whole)))


def _spread(shape: Any) -> tuple[slice, ...]:
    """An index of at most about ``PER_TENSOR`` numbers, as many of each dimension."""
    each = max(1, int(PER_TENSOR ** (1 / max(1, len(shape)))))
    return tuple(slice(None, None, max(1, -(-size // each))) for size in shape)
