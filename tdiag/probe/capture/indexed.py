"""Brackets that pick along one dimension what a tensor of numbers names, of a value with gradients.

``x[:, numbers]`` can name any elements, so its backward adds them one by one; that of
``x.index_select(1, numbers)`` adds whole rows.
"""

from __future__ import annotations

from typing import Any

import torch


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
