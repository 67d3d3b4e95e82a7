"""What a step computes from its batch alone: no weight takes part, so it could be done before.

Results are followed from call to call. A result depends on weights if a gradient is recorded for
it, if a parameter takes part, or if an earlier such result does, even detached. It depends on
chance if random numbers do.
"""

from __future__ import annotations

from typing import Any

import torch

from ..by_tensor import ByTensor
from .frozen_weights import BRANCHES, DROPOUTS, RANDOM, changes, flat, keep, tensors_in

# What they return is chosen by their last inputs: a shuffled order is no chance.
PICKS = {"__getitem__", "index_select", "gather", "take", "take_along_dim"}


class BatchWork:
    """One per window ``ops``."""

    def __init__(self) -> None:
        self.of_weights: ByTensor[bool] = ByTensor()
        self.of_chance: ByTensor[bool] = ByTensor()

    def seen(self, name: str, args: Any, kwargs: Any, result: Any, frozen: bool) -> bool:
        """A call returned. ``frozen``: its result depends on frozen weights. Returns whether it
        computed something from the batch alone."""
        given = list(tensors_in(args, kwargs))
        made = [value for value in flat((result,)) if isinstance(value, torch.Tensor)]
        changed = changes(name)
        results = [*made, *(given[:1] if changed else ())]
        weights = frozen or any(value.requires_grad for value in (*given, *made))
        weights = weights or any(
            isinstance(v, torch.nn.Parameter) or v in self.of_weights for v in given
        )
        chance = name in RANDOM or name in DROPOUTS
        sources = given[:1] if name in PICKS else given
        chance = chance or any(v in self.of_chance for v in sources)
        if weights:
            keep(self.of_weights, results)
        if chance:
            keep(self.of_chance, results)
        computed = bool(made) or name in BRANCHES or changed
        return not (weights or chance) and bool(given) and computed
