"""Batches of equal matrices: one for each sample, though none depends on its sample.

The covariance of a Kalman filter, a kernel matrix, a rotation: expanded to the batch, each product
and each factorisation computes it again for every sample.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from ..models import plain
from .copied_rows import POINTWISE, READ_FIRST
from .lines import LineCalls
from .operands import MATRIX, MOST

ALGEBRA = MATRIX | POINTWISE | {
    "cholesky", "linalg_cholesky", "linalg_cholesky_ex", "cholesky_solve", "linalg_solve",
    "linalg_solve_ex", "linalg_solve_triangular", "linalg_inv", "linalg_inv_ex", "inverse",
    "linalg_eigh", "linalg_qr", "linalg_svd", "linalg_matrix_exp", "matrix_exp",
    "linalg_matrix_power", "einsum",
}  # fmt: skip
LEAST_COPIES = 4  # heuristic: fewer samples make no batch, and save little


class EqualMatrices:
    """One per window ``ops``."""

    def __init__(self) -> None:
        self.unlike: Counter[Any] = Counter()  # (place, function) → results of different matrices

    def seen(self, name: str, result: Any, at: Any, line: LineCalls, took: int) -> None:
        """A call of this line, at ``at``, returned after ``took`` ns."""
        if name not in ALGEBRA or self.unlike[at, name] >= READ_FIRST:
            return
        made = result[0] if isinstance(result, tuple) and result else result
        if not _readable(made):
            return
        number = made.shape[0]
        if _are_equal(made.detach()):
            line.alike += round(took * (1 - 1 / number))
            line.matrices = max(line.matrices, number)
        else:
            self.unlike[at, name] += 1


def _readable(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and plain(value)
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.is_floating_point()
        and value.dim() > 2
        and value.shape[0] >= LEAST_COPIES
        and 0 < value.numel() <= MOST
    )


def _are_equal(value: torch.Tensor) -> bool:
    """Whether all along the first dimension are equal, and not of one number: zeros and ones are
    equal for other reasons."""
    first = value[:1]
    if bool((first == first.flatten()[0]).all()) or not bool((value[-1:] == first).all()):
        return False
    return bool((value == first).all())
