"""What a model computes again for a prefix: sequences that grow by what it predicts, and that it is
given as a whole each time (generation without a cache of keys and values).

Tensors that are joined from a sequence, and views of it, are the same sequence. It grows if the
same weight gets more of it than before. From then on, until it is joined again, the share that the
weight was given before is computed again. The same weight has to get more of it several times in a
row: two batches that take their positions from one table are no such sequence.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from .. import places
from ..by_tensor import ByTensor
from .lines import LineCalls
from .operands import JOINS

LAYERS = {"embedding", "linear", "conv1d"}  # their input comes first, then the weight
FOLLOWED = {
    "__getitem__", "view", "reshape", "to", "long", "float", "clone", "contiguous", "detach",
    "transpose", "permute", "unsqueeze", "squeeze",
}  # fmt: skip

GROWN_OFTEN = 3  # heuristic: a batch, a longer one and a still longer one are no sequence


class Prefixes:
    """One per window ``ops``. ``again``: the share of what is computed now that was computed
    before, 0 to 1; ``lines``: for each line that calls such a model, how often, the positions it
    was given, and those of them that were new."""

    def __init__(self) -> None:
        self.again = 0.0
        self.lines: dict[Any, list[int]] = {}
        self.numbers = itertools.count()
        self.known: ByTensor[int] = ByTensor()  # tensor → number of its sequence
        # (sequence, id of a weight) → the shape that it was given last, and how often it has grown.
        self.given: dict[tuple[int, int], tuple[torch.Size, int]] = {}
        # Number of a sequence → file and name of the user's function that makes it longer.
        self.makers: dict[int, tuple[str, str]] = {}

    def seen(self, name: str, args: Any, result: Any, line: LineCalls, took: int) -> None:
        """A call returned."""
        if name in JOINS:
            self._joined(args[0] if args else (), result)
        elif name in FOLLOWED and args:
            number = self.known.get(args[0])
            if number is None and name == "__getitem__":  # the begin of a longer one, perhaps
                self._keep(args[0], number := next(self.numbers))
            if number is not None:
                self._keep(result, number)
        elif name in LAYERS and len(args) > 1 and (number := self.known.get(args[0])) is not None:
            self._computed(name, args[0].shape, (number, id(args[1])))
        line.prefix += round(took * self.again)

    def backward_begins(self) -> None:
        self.again = 0.0
        self.given.clear()

    def _joined(self, parts: Any, result: Any) -> None:
        if not isinstance(parts, (list, tuple)) or not parts:
            return
        number = self.known.get(parts[0])
        if number is None:
            self._keep(parts[0], number := next(self.numbers))
        else:
            self.again = 0.0
        self._keep(result, number)
        if at := places.caller():
            self.makers[number] = at[0], at[2]

    def _computed(self, name: str, shape: torch.Size, key: tuple[int, int]) -> None:
        before, grown = self.given.get(key, (shape, 0))
        old, new = before.numel(), shape.numel()
        grows = len(before) == len(shape) and before[0] == shape[0] and 0 < old < new
        self.given[key] = shape, grown + 1 if grows else 0
        if grows and grown + 1 >= GROWN_OFTEN:
            self.again = old / new
            at = self._calling(key[0])
            line = self.lines.setdefault(tuple(at) if at else None, [0, 0, 0])
            wide = shape[-1] if name == "linear" else shape[1] if name == "conv1d" else 1
            for number, more in enumerate((1, new // wide, (new - old) // wide)):
                line[number] += more

    def _calling(self, number: int) -> list[Any] | None:
        """The line that gives the model the sequence, in the function that makes it longer; that
        which calls the outermost module where that function does not run now."""
        maker = self.makers.get(number)
        running = map(places.place_of, places.user_frames())
        found = next((at for at in running if (at[0], at[2]) == maker), None)
        return found or places.caller_of_modules()

    def _keep(self, tensor: Any, number: int) -> None:
        if isinstance(tensor, torch.Tensor):
            self.known.keep(tensor, number)

    def report(self) -> dict[str, Any]:
        """The field `prefixes` of the `ops` record."""
        return {"prefixes": [[at, *numbers] for at, numbers in self.lines.items()]}
