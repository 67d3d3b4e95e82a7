"""Follows attention that is written out: softmax(q @ k.T) @ v, from product to product.

A softmax between products is not enough: a graph network's scores are sums of what each end gives,
and contrastive scores are no weights of anything."""

from __future__ import annotations

from typing import Any

PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum"}
SOFTMAXES = {"softmax", "_softmax"}
# Scaling, masking and casting, which leave scores scores and weights weights.
PASSED_ON = {
    "div", "__truediv__", "true_divide", "mul", "__mul__", "__rmul__", "add", "__add__", "__radd__",
    "sub", "__sub__", "masked_fill", "where", "dropout", "to", "float", "half", "type_as",
    "contiguous",
}  # fmt: skip
SCORES, WEIGHTS = "scores", "weights"


def stage_of(name: str, taken: str, result: Any) -> str:
    """What the result of this call is; ``taken``: what the first such argument was, "" if none is.

    Scores are the product of two matrices with more than one row and column each.
    """
    if name in PRODUCTS and not taken:
        return SCORES if result.dim() >= 2 and min(result.shape[-2:]) > 1 else ""
    if name in SOFTMAXES:
        return WEIGHTS if taken == SCORES else ""
    return taken if name in PASSED_ON else ""
