"""The large operands of products and convolutions whose values may be read."""

from __future__ import annotations

from typing import Any

import torch

from ..models import plain

MATRIX = {"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm"}
# What copies tensors into a larger one.
JOINS = {"cat", "concat", "concatenate", "stack", "hstack", "vstack", "row_stack"}
CONVOLUTIONS = {"conv1d", "conv2d", "conv3d"}
# Shorter calls may be fixed cost, which fewer numbers do not save (fixed_cost.NO_OVERHEAD_NS).
LONG_NS = 100_000
FEWEST, MOST = 1 << 14, 1 << 24  # elements; reading more would take memory


def readable(value: Any) -> bool:
    """A matrix of plain numbers in the memory of the CPU, neither small nor huge."""
    return (
        isinstance(value, torch.Tensor)
        and plain(value)
        and value.is_floating_point()
        and value.dim() > 1
        and in_memory(value)
    )


def in_memory(value: torch.Tensor) -> bool:
    on_cpu = value.device.type == "cpu" and value.layout is torch.strided
    return on_cpu and FEWEST <= value.numel() <= MOST
