"""What a call costs a device, estimated from its tensors.

The host's clock shows only how long it takes to launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

# Operations that take a device as long as moving a byte: by the data sheets 100 for an A100 with
# TF32 (156 TFLOP/s, 1.555 TB/s), from 25 (T4, float32) to 300 (H100, bfloat16).
OPERATIONS_PER_BYTE = 100
# Calls are compared with each other, so the rate matters little: 1 TB/s.
BYTES_PER_NS = 1000
ON_HOST = "cpu"
_PRODUCTS = frozenset({"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm",
                       "baddbmm", "einsum", "tensordot"})  # fmt: skip
_ATTENTION = "scaled_dot_product_attention"


def device_ns(name: str, args: Any, kwargs: Any, result: Any) -> int | None:
    """At ``BYTES_PER_NS``; 0 for a call that only describes a tensor or makes none; None for one
    that computed on the host."""
    results = list(_tensors((result,)))
    made = [x for x in results if x.device.type != ON_HOST]
    if not made:
        return None if results else 0
    taken = list(_tensors((args, kwargs)))
    if not name.endswith("_") and _views(made, taken):
        return 0
    size = sum(x.numel() * x.element_size() for x in (*taken, *made))
    try:
        operations = _operations(name, made[0], taken)
    except RuntimeError:  # a nested tensor has no shape
        operations = 0
    return max(size, operations // OPERATIONS_PER_BYTE) // BYTES_PER_NS


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list, dict)):
            yield from _tensors(value)


def _views(made: list[torch.Tensor], taken: list[torch.Tensor]) -> bool:
    known = {storage for x in taken if (storage := _storage(x)) is not None}
    return all(_storage(x) in known for x in made)


def _storage(tensor: torch.Tensor) -> int | None:
    """None for a tensor without one (sparse, nested)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return None


def _operations(name: str, made: torch.Tensor, taken: list[torch.Tensor]) -> int:
    """Multiplications and additions of products, convolutions, recurrent layers and attention."""
    if name == _ATTENTION and len(taken) > 1 and taken[1].dim() > 1:
        return 4 * taken[0].numel() * taken[1].shape[-2]
    if name in _PRODUCTS and taken:
        inner = taken[1 if name in ("addmm", "baddbmm") and len(taken) > 1 else 0]
        return 2 * made.numel() * inner.shape[-1] if inner.dim() else 0
    if name.startswith("conv") and len(taken) > 1 and taken[1].dim() > 1:
        return 2 * made.numel() * taken[1].numel() // max(1, taken[1].shape[0])
    if name in ("lstm", "gru", "rnn_tanh", "rnn_relu") and taken and taken[0].dim():
        weights = sum(x.numel() for x in taken[1:] if x.dim() == 2)
        return 2 * taken[0].numel() // max(1, taken[0].shape[-1]) * weights
    return 0
