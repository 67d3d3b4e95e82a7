"""Reads the values of a tensor of the user's without leaving a trace."""

from __future__ import annotations

import math
from typing import Any

import torch

# A stride through a large tensor: 65,536 values are read in well under a millisecond, and what
# holds for all of them holds for all but a few in a hundred thousand of the rest.
MOST_VALUES = 65_536


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def plain(tensor: Any) -> bool:
    """A dense tensor whose values can be read: no subclass, not sparse, not meta."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not tensor.is_quantized
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def watched_by_script() -> bool:
    """Ops of ours would be seen: by the script's profiler, its dispatch mode, a CUDA graph."""
    if torch._C._autograd._profiler_enabled() or torch._C._len_torch_dispatch_stack():
        return True
    initialized = torch.cuda.is_available() and torch.cuda.is_initialized()
    return bool(initialized and torch.cuda.is_current_stream_capturing())


def strided_sample(tensor: torch.Tensor) -> torch.Tensor | None:
    """At most about ``MOST_VALUES`` of its values, float64; None if that would copy it all.

    The stride is no multiple of 2 or 3, so that no channel of an image is passed over.
    """
    if tensor.is_complex() or not tensor.is_contiguous() or not tensor.numel():
        return None
    stride = max(1, tensor.numel() // MOST_VALUES)
    while stride > 1 and (stride % 2 == 0 or stride % 3 == 0):
        stride += 1
    return tensor.detach().view(-1)[::stride].to(torch.float64)


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
