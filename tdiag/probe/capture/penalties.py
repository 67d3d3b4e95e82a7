"""Sums of squares of parameters that are added to the loss: weight decay, computed and
differentiated by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ..by_tensor import ByTensor
from .contractions import ADDS
from .frozen_weights import tensors_in
from .lines import LineCalls

# Their result has the same numbers: of parameters, or of their squares.
LAYOUTS = {
    "view", "reshape", "flatten", "ravel", "contiguous", "float", "double", "to", "clone", "cat",
    "concat", "stack",
}  # fmt: skip
SCALES = {"mul", "__mul__", "__rmul__", "div", "__truediv__"}  # by a number
SUMS = {"sum", "add", "__add__", "__radd__", "__iadd__", "add_"}  # of squares: of numbers no more
PRODUCTS = {"mul", "__mul__", "dot", "vdot", "inner"}
POWERS = {"pow", "__pow__"}
NORMS = {"norm", "linalg_norm", "linalg_vector_norm", "linalg_matrix_norm"}


@dataclass
class OfParameters:
    """Of parameters alone. ``spent``: the calls' lines and ns; ``power``: 1, or 2 for a sum of
    squares; ``norm``: the root of one."""

    power: int = 1
    norm: bool = False
    spent: list[tuple[LineCalls, int]] = field(default_factory=list)


class Penalties:
    """One per window ``ops``."""

    def __init__(self) -> None:
        self.tensors: ByTensor[OfParameters] = ByTensor()

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, line: LineCalls, took: int
    ) -> None:  # fmt: skip
        """A call of this line returned after ``took`` ns."""
        if not isinstance(result, torch.Tensor) or not result.requires_grad:
            return
        given = list(tensors_in(args, kwargs))
        known = [self._known(value) for value in given]
        parts = [made for made in known if made is not None]
        if not parts:
            return
        strange = [x for x, made in zip(given, known) if made is None and x.requires_grad]
        if strange:
            if name in ADDS:
                self._added(given, known)
            return
        if any(made is None and x.numel() > 1 for x, made in zip(given, known)):
            return
        made = _made_by(name, args, kwargs, parts)
        if made is None:
            return
        for part in {id(part): part for part in parts}.values():
            made.spent += part.spent
        made.spent.append((line, took))
        self.tensors.keep(result, made)

    def _known(self, value: Any) -> OfParameters | None:
        known = self.tensors.get(value)
        if known is not None:
            return known
        mine = isinstance(value, torch.nn.Parameter) and value.requires_grad
        return OfParameters() if mine else None

    def _added(self, given: list[Any], known: list[OfParameters | None]) -> None:
        """To what comes from the batch."""
        for value, made in zip(given, known):
            if made is not None and made.power == 2 and not made.norm and value.numel() == 1:
                for line, took in made.spent:
                    line.final.penalty += took
                made.spent = []


def _made_by(name: str, args: Any, kwargs: Any, parts: list[OfParameters]) -> OfParameters | None:
    """What the call makes of these; None if it is no part of a sum of squares."""
    powers = {part.power for part in parts}
    norm = any(part.norm for part in parts)
    squares = name == "square" or (
        name in POWERS and (args[1] if len(args) > 1 else kwargs.get("exponent")) == 2
    )
    if squares or (name in PRODUCTS and len(args) > 1 and args[0] is args[1]):
        return OfParameters(power=2) if norm or powers == {1} else None
    if name in NORMS:
        order = kwargs.get("p", kwargs.get("ord", args[1] if len(args) > 1 else None))
        # Of a matrix, torch.linalg's ord=2 is the largest singular value.
        twos = (None, "fro") if name in ("linalg_norm", "linalg_matrix_norm") else (None, "fro", 2)
        roots = powers == {1} and order in twos
        return OfParameters(power=2, norm=True) if roots else None
    if norm or len(powers) > 1:
        return None
    (power,) = powers
    linear = name in LAYOUTS or (name in SCALES and len(parts) == 1)
    return OfParameters(power=power) if linear or (name in SUMS and power == 2) else None
