"""Brackets that pick what a tensor of numbers or a mask names, and calls that do the same.

``x[:, numbers]`` can name any elements, so its backward adds them one by one; that of
``x.index_select(1, numbers)`` adds whole rows. How many elements a mask keeps depends on its
values, which a device must tell the host.
"""

from __future__ import annotations

from typing import Any

import torch

# Calls whose result's size depends on values (torch's documentation of each) → the one that does
# the same.
SIZED = {
    "nonzero": "nonzero", "argwhere": "nonzero", "unique": "unique",
    "unique_consecutive": "unique", "masked_select": "masked_select",
}  # fmt: skip


def by_brackets(name: str, args: Any) -> bool:
    """Whether ``index_select`` could do the same."""
    if name != "__getitem__" or len(args) < 2 or not args[0].requires_grad:
        return False
    parts = args[1] if isinstance(args[1], tuple) else (args[1],)
    numbers = [part for part in parts if isinstance(part, torch.Tensor)]
    whole = all(
        part is Ellipsis or (isinstance(part, slice) and part == slice(None))
        for part in parts
        if not isinstance(part, torch.Tensor)
    )
    return (
        whole
        and len(numbers) == 1
        and numbers[0].dim() > 0
        and numbers[0].dtype in (torch.int64, torch.int32)
    )


def sized_by_value(name: str, args: Any, kwargs: Any) -> str | None:
    """Which call of ``SIZED`` does what this one does; None if its result's size depends on shapes
    alone. ``x[mask] = 0`` is a fill, whose size is that of ``x``."""
    if name == "where":
        return "nonzero" if len(args) + len(kwargs) == 1 else None
    if name == "__getitem__" or (name == "__setitem__" and _many(args[2])):
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        masked = any(
            isinstance(x, torch.Tensor) and x.dtype is torch.bool and x.dim() > 0 for x in parts
        )
        return "masked_select" if masked else None
    return SIZED.get(name)


def _many(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 1
