"""What a step computes more than once: the same call on the same tensors.

Tensors get numbers, as compilers number values: equal numbers mean equal contents. A call on the
same numbers as an earlier one of the same step gives its results the same numbers, so that a whole
chain of calls is recognised; so is what a call changes in place. Random calls get new numbers. Of a
matrix's power the step may have computed the one before: then one product is new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..by_tensor import MOST_TRACKED, ByTensor
from ..models import plain
from .constants import PLAIN
from .frozen_weights import DROPOUTS, RANDOM, flat, tensors_in

if TYPE_CHECKING:
    from ..core import Probe


SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
POWERS = {"matrix_power", "linalg_matrix_power"}


class Again:
    """One per window ``ops``. ``numbers``: each tensor's version, and its number then."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.step = -1
        self.numbers: ByTensor[tuple[int, int]] = ByTensor()
        self.calls: dict[Any, tuple[int, ...]] = {}
        self.powers: set[tuple[int, int]] = set()  # number of a matrix, exponent
        self.last = 0

    def seen(self, name: str, args: Any, kwargs: Any, result: Any) -> float:
        """A call returned. Returns the share of it that an earlier one of this step computed."""
        if self.step != self.probe.step:
            self.step = self.probe.step
            self.numbers.clear()
            self.calls.clear()
            self.powers.clear()
        made = [value for value in flat((result,)) if isinstance(value, torch.Tensor)]
        given = list(tensors_in(args, kwargs))
        recorded = any(value.requires_grad for value in made)
        key = None
        if name not in RANDOM and name not in DROPOUTS:
            key = self._key(name, args, kwargs, recorded, {id(value) for value in made})
        before = None if key is None else self.calls.get(key)
        if before is not None and len(before) == len(made):
            for value, number in zip(made, before, strict=True):
                self._keep(value, number)
            return float(bool(given) and bool(made))
        found = tuple(self._number(value) for value in made)  # x.contiguous() may be x
        if key is not None and len(self.calls) < MOST_TRACKED:
            self.calls[key] = found
        return self._of_power(*args) if name in POWERS and len(args) == 2 else 0.0

    def _of_power(self, matrix: torch.Tensor, exponent: int) -> float:
        """The share of the products of this power that the one before makes superfluous."""
        if not isinstance(exponent, int) or exponent < 1:
            return 0.0
        number = self._number(matrix)
        before = (number, exponent - 1) in self.powers
        self.powers.add((number, exponent))
        # It squares, and multiplies for each further bit.
        products = exponent.bit_length() + exponent.bit_count() - 2
        return 1 - 1 / products if before and products > 1 else 0.0

    def _key(
        self, name: str, args: Any, kwargs: Any, recorded: bool, made: set[int]
    ) -> Any:  # fmt: skip
        """None if an argument is neither a tensor nor a plain value. ``made``: ids of the results;
        an argument among them was changed in place."""
        parts: list[Any] = [name, recorded]
        for value in flat((*args, *kwargs.items())):
            if isinstance(value, torch.Tensor):
                parts.append(self._number(value, changes=id(value) in made))
            elif isinstance(value, PLAIN):
                parts.append(repr(value))
            else:
                return None
        return tuple(parts)

    def _number(self, tensor: Any, changes: int = 0) -> int:
        """``changes``: the most changes of its contents since it had the number."""
        known = self.numbers.get(tensor)
        if known and 0 <= tensor._version - known[0] <= changes:
            return known[1]
        base = tensor._base if plain(tensor) else None
        if base is None or len(self.calls) >= MOST_TRACKED:
            return self._new(tensor)
        # A view that no call made (``x.mT``) is what it shows of its base.
        key = ("view", self._number(base), tensor.dtype, tensor.is_conj(), tensor.shape,
               tensor.stride(), tensor.storage_offset())  # fmt: skip
        if key not in self.calls:
            self.calls[key] = (self._new(tensor),)
        (number,) = self.calls[key]
        self._keep(tensor, number)
        return number

    def _new(self, tensor: Any) -> int:
        self.last += 1
        self._keep(tensor, self.last)
        return self.last

    def _keep(self, tensor: Any, number: int) -> None:
        """Inference tensors have no version, and subclasses may have none. That of a sparse tensor
        counts the changes of its values, too."""
        sparse = type(tensor) is torch.Tensor and tensor.layout in SPARSE
        if (plain(tensor) or sparse) and not tensor.is_inference():
            self.numbers.keep(tensor, (tensor._version, number))
