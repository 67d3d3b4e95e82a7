"""Fourier transforms of lengths that no fast algorithm suits: a large prime divides them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .operands import LONG_NS

# The smallest at which TD743's gain was measured (benchmarks/rule_constants.py td743).
AWKWARD_PRIME = 61
REAL_RESULT = {"fft_irfft", "fft_irfft2", "fft_irfftn"}  # as long as the transform
NAMES = {f"fft_{way}{kind}" for way in ("", "i") for kind in ("fft", "rfft", "fft2", "rfft2",
                                                              "fftn", "rfftn")}  # fmt: skip


def awkward_length(name: str, args: Any, kwargs: Any, result: Any, took: int) -> int:
    """The length of this call's transform if it takes long and a large prime divides it, else 0."""
    if name not in NAMES or took < LONG_NS or not isinstance(result, torch.Tensor):
        return 0
    return max((n for n in _lengths(name, args, kwargs, result) if _awkward(n)), default=0)


def _lengths(name: str, args: Any, kwargs: Any, result: torch.Tensor) -> Iterator[int]:
    given = dict(zip(("input", "n", "dim"), args), **kwargs)
    asked = given.get("s", given.get("n"))
    dims = given.get("dim")
    if dims is None:
        dims = (-2, -1) if name.endswith("2") else range(-result.dim(), 0)
        dims = dims if name.endswith(("2", "n")) else (-1,)
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    if asked is not None:
        yield from (asked,) if isinstance(asked, int) else asked
        return
    shape = result.shape if name in REAL_RESULT else given["input"].shape
    yield from (shape[dim] for dim in dims)


def _awkward(length: int) -> bool:
    prime = 2
    while prime < AWKWARD_PRIME and length > 1:
        if length % prime:
            prime += 1
        else:
            length //= prime
    return length > 1
