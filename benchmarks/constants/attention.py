"""Attention written out, fused, and by torch's slow form; forward and backward on one core."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch

from constants import Figures, interleaved, measures, times_as_fast

fused = torch.nn.functional.scaled_dot_product_attention


def inputs(*shape: int) -> list[Any]:
    return [torch.randn(shape, requires_grad=True) for _ in range(3)]


def with_backward(of: Callable[[], Any]) -> Callable[[], None]:
    return lambda: of().sum().backward()


def written_out(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-2, -1) / sqrt(q.shape[-1]), dim=-1) @ v


@measures(
    td608_attention_written_out__FUSED_LOW_FRAC="least",
    td608_attention_written_out__FUSED_HIGH_FRAC="most",
)
def written() -> Figures:
    figures = {}
    for batch, heads, length, size in (
        (4, 4, 64, 32), (2, 8, 64, 64), (1, 4, 256, 32), (1, 8, 256, 64), (1, 2, 1024, 64),
    ):  # fmt: skip
        made = inputs(batch, heads, length, size)
        slow, fast = interleaved(
            with_backward(lambda made=made: written_out(*made)),
            with_backward(lambda made=made: fused(*made)),
        )
        figures[f"length {length}, heads of {size}"] = 1 - fast / slow
    return figures


@measures(
    td614_attention_without_fused_kernel__FUSED_LOW="least",
    td614_attention_without_fused_kernel__FUSED_HIGH="most",
)
def dimensions() -> Figures:
    """Three dimensions take the slow form, four the fused kernel."""
    figures = {}
    for length, together in ((32, 64), (64, 32), (256, 8), (1024, 1)):
        for size in (16, 64, 128):
            three = inputs(together, length, size)
            four = [one.detach().unsqueeze(0).requires_grad_() for one in three]
            figures[f"length {length}, heads of {size}"] = times_as_fast(
                with_backward(lambda made=three: fused(*made)),
                with_backward(lambda made=four: fused(*made)),
            )
    return figures


@measures(td614_attention_without_fused_kernel__NO_DROPOUT_HIGH="most")
def dropout() -> Figures:
    figures = {}
    for length, batch in ((32, 16), (64, 8), (256, 2), (1024, 1)):
        for size in (32, 64):
            made = inputs(batch, 2, length, size)
            figures[f"length {length}, heads of {size}"] = times_as_fast(
                with_backward(lambda made=made: fused(*made, dropout_p=0.1)),
                with_backward(lambda made=made: fused(*made)),
            )
    return figures
