"""A covariance of a few factors and a diagonal, written out against its factors, with backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.distributions import Distribution, LowRankMultivariateNormal, MultivariateNormal

from constants import Figures, measures, times_as_fast

# Matrices, rows, factors: at most a quarter of the rows.
MANY = (224, 96, 6), (16, 256, 8), (1, 512, 16), (8, 128, 32)
FEW = (64, 32, 4), (64, 32, 8), (512, 24, 3), (32, 64, 2)


def written_out(mean: torch.Tensor, factors: torch.Tensor, rest: torch.Tensor) -> Distribution:
    covariance = factors @ factors.mT + torch.diag_embed(rest)
    return MultivariateNormal(mean, covariance_matrix=covariance, validate_args=False)


def as_factors(mean: torch.Tensor, factors: torch.Tensor, rest: torch.Tensor) -> Distribution:
    return LowRankMultivariateNormal(mean, factors, rest, validate_args=False)


@measures(td757_thin_covariance_written_out__FASTER_LOW="least",
          td757_thin_covariance_written_out__FASTER_HIGH="most")  # fmt: skip
def many_rows() -> Figures:
    return _faster(MANY)


@measures(td757_thin_covariance_written_out__FEW_FASTER_LOW="least",
          td757_thin_covariance_written_out__FEW_FASTER_HIGH="most")  # fmt: skip
def few_rows() -> Figures:
    return _faster(FEW)


def _faster(covariances: tuple[tuple[int, int, int], ...]) -> Figures:
    figures = {}
    for batch, rows, rank in covariances:
        mean = torch.randn(batch, rows, requires_grad=True)
        factors = torch.randn(batch, rows, rank, requires_grad=True)
        rest = (torch.rand(batch, rows) + 0.5).requires_grad_()
        seen = torch.randn(batch, rows)

        def work(
            make: Callable[..., Distribution],
            given: tuple[torch.Tensor, ...] = (mean, factors, rest),
            seen: torch.Tensor = seen,
        ) -> Callable[[], None]:
            return lambda: make(*given).log_prob(seen).sum().backward()

        figures[f"{batch} of {rows}, {rank} factors"] = times_as_fast(
            work(written_out), work(as_factors)
        )
    return figures
