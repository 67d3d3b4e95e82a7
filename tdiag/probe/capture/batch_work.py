"""What a step computes from its batch alone: no weight takes part, so it could be done before.

Results are followed from call to call. A result depends on weights if a gradient is recorded for
it, if a parameter takes part, or if an earlier such result does, even detached. It depends on
chance if random numbers do.
"""

from __future__ import annotations

from typing import Any

import torch

from .frozen_weights import BRANCHES, DROPOUTS, RANDOM, flat, holds, keep, tensors_in

CHANGES = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"}


class BatchWork:
    """One per window ``ops``. Tensors are known by id, each with a weak reference."""

    def __init__(self) -> None:
        self.others: dict[int, Any] = {}  # tensors that depend on weights or on chance

    def seen(self, name: str, args: Any, kwargs: Any, result: Any, frozen: bool) -> bool:
        """A call returned. ``frozen``: its result depends on frozen weights. Returns whether it
        computed something from the batch alone."""
        given = list(tensors_in(args, kwargs))
        made = [value for value in flat((result,)) if isinstance(value, torch.Tensor)]
        other = frozen or name in RANDOM or name in DROPOUTS
        other = other or any(value.requires_grad for value in (*given, *made))
        other = other or any(
            isinstance(v, torch.nn.Parameter) or holds(self.others, v) for v in given
        )
        if other:
            changed = name in CHANGES or (name.endswith("_") and not name.endswith("__"))
            keep(self.others, [*made, *(given[:1] if changed else ())])
        return not other and bool(given) and (bool(made) or name in BRANCHES or name in CHANGES)
