"""A product with an inverse against ``torch.linalg.solve``, with their backward."""

from __future__ import annotations

from collections.abc import Callable

import torch

from constants import Figures, measures, times_as_fast

# Matrices, rows, columns of the other operand: at most a quarter of the rows.
SYSTEMS = (
    (1, 16, 1), (1, 64, 1), (1, 256, 1), (1, 256, 64), (1, 512, 6), (8, 128, 6), (8, 220, 6),
    (64, 16, 1), (64, 64, 1), (64, 64, 6), (256, 8, 1), (1_024, 4, 1),
)  # fmt: skip


@measures(td752_inverse_multiplied__FASTER_LOW="least",
          td752_inverse_multiplied__FASTER_HIGH="most")  # fmt: skip
def inverses() -> Figures:
    figures = {}
    for batch, rows, columns in SYSTEMS:
        matrix = torch.randn(batch, rows, rows) + rows * torch.eye(rows)
        matrix.requires_grad_()
        right = torch.randn(batch, rows, columns, requires_grad=True)
        gradient = torch.randn(batch, rows, columns)

        def work(
            solve: Callable[..., torch.Tensor],
            matrix: torch.Tensor = matrix,
            right: torch.Tensor = right,
            gradient: torch.Tensor = gradient,
        ) -> Callable[[], None]:
            def run() -> None:
                matrix.grad = right.grad = None
                solve(matrix, right).backward(gradient)

            return run

        figures[f"{batch} of {rows}, {columns} columns"] = times_as_fast(
            work(lambda a, b: torch.linalg.inv(a) @ b), work(torch.linalg.solve)
        )
    return figures
