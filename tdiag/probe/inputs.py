"""Looks at what reaches the model in its first training steps: shape, range, mean and spread."""

from __future__ import annotations

from typing import Any

import torch

from .tensors import finite, nbytes, plain, watched_by_script

MOST_LOOKS, MOST_TENSORS = 2, 4  # calls of a module, tensors of a call
# Keywords under which models are given what they shall predict.
LABELS = {"label", "labels", "label_ids", "target", "targets", "y"}
MOST_CHANNELS = 16  # more are features, not channels of a picture
# The first samples of a batch, so many that they hold 262,144 float32: about a millisecond.
MOST_BYTES = 1 << 20


def describe(args: Any, kwargs: Any) -> list[dict[str, Any]]:
    """Of each of the first floating tensors among the arguments: `name` (its place, or keyword),
    `first` (it is the first tensor of all, labels apart: what follows may be a mask, a state, a
    number), `dtype`, `shape`, `mean` and `std` (of each channel, dimension 1, of 3 or more
    dimensions; else of all), `min`, `max`, `binary` (nothing but zeros and ones)."""
    named = [*((str(n), value) for n, value in enumerate(args)), *kwargs.items()]
    given: list[tuple[str, torch.Tensor]] = []
    for name, value in named:
        given += _tensors(name, value)
    found = [(name, tensor) for name, tensor in given if _readable(tensor)]
    first = next((name for name, _ in given if name.rsplit(".", 1)[-1] not in LABELS), None)
    if watched_by_script():
        return []
    with torch.no_grad(), torch._C.DisableTorchFunction():
        looked = [(name, _describe(tensor)) for name, tensor in found[:MOST_TENSORS]]
    return [
        {"name": name, "first": name == first, **about}
        for name, about in looked
        if about is not None
    ]


def _tensors(name: str, value: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(name, value)]
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, (list, tuple)):
        inner = list(enumerate(value))
    return [(f"{name}.{key}", v) for key, v in inner if isinstance(v, torch.Tensor)]


def _readable(tensor: torch.Tensor) -> bool:
    """A tensor of numbers that no other module has computed."""
    given = plain(tensor) and tensor.is_floating_point() and tensor.grad_fn is None
    return bool(given and tensor.numel())


def _describe(tensor: torch.Tensor) -> dict[str, Any] | None:
    whole = list(tensor.shape)
    if tensor.dim():
        share = max(1, len(tensor) * MOST_BYTES // max(1, nbytes(tensor)))
        tensor = tensor[:share]
    values = tensor.to(torch.float32)
    low, high = finite(float(values.min())), finite(float(values.max()))
    if low is None or high is None:
        return None
    by_channel = values.dim() >= 3 and values.shape[1] <= MOST_CHANNELS
    rows = values.transpose(0, 1).flatten(1) if by_channel else values.reshape(1, -1)
    return {
        "dtype": str(tensor.dtype).replace("torch.", ""),
        "shape": whole,
        "mean": rows.mean(1).tolist(),
        "std": rows.std(1, correction=0).tolist(),
        "min": low,
        "max": high,
        "binary": bool(((values == 0) | (values == 1)).all()),
    }
