"""Measures what a DataLoader hands out."""

from __future__ import annotations

from typing import Any

import torch

MOST_TENSORS = 256  # a batch of thousands of small tensors is weighed by its first ones


def count_bytes(batch: Any) -> tuple[int | None, dict[str, int] | None]:
    """Bytes of all tensors in a batch, and by dtype; (None, None) where there is none."""
    dtypes: dict[str, int] = {}
    left = [MOST_TENSORS]

    def visit(value: Any, depth: int) -> None:
        if left[0] <= 0 or depth > 6:
            return
        if isinstance(value, torch.Tensor):
            left[0] -= 1
            name = str(value.dtype).replace("torch.", "")
            dtypes[name] = dtypes.get(name, 0) + value.numel() * value.element_size()
        elif isinstance(value, dict):
            for inner in value.values():
                visit(inner, depth + 1)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                visit(inner, depth + 1)

    visit(batch, 0)
    return (sum(dtypes.values()), dtypes) if dtypes else (None, None)


def length(dataset: Any) -> int | None:
    """``len`` of a map-style dataset; None for streams and whatever refuses."""
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return None
    try:
        return len(dataset)
    except Exception:  # the user's __len__ may do anything; not knowing is an answer
        return None
