"""Large tensors that are made and reduced again, against expressions that never make them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from constants import Figures, measures, times_as_fast

nn = torch.nn


def with_backward(call: Callable[..., Any], *given: Any) -> Callable[[], None]:
    made = [x.requires_grad_() for x in given]
    return lambda: call(*made).square().mean().backward()


def summed_of_pairs(x: Any) -> Any:
    """For each value the sum of the exponentials of all that are not larger."""
    apart = x.detach()
    return ((apart <= apart[:, None]).float() @ x.exp()).log()


def summed_of_sorted(x: Any) -> Any:
    return torch.logcumsumexp(x[torch.argsort(x.detach())], 0)


@measures(
    td721_broadcast_then_summed__CONTRACTED_LOW="least",
    td721_broadcast_then_summed__CONTRACTED_HIGH="most",
)
def contractions() -> Figures:
    figures = {}
    for rows, wide, out in ((64, 128, 16), (64, 256, 16), (64, 256, 128), (256, 128, 64)):
        figures[f"product, {rows} × {wide} × {out}"] = times_as_fast(
            with_backward(lambda x, w: (x[:, :, None] * w).sum(1), *(
                torch.randn(rows, wide), torch.randn(wide, out)
            )),
            with_backward(torch.matmul, torch.randn(rows, wide), torch.randn(wide, out)),
        )  # fmt: skip
    for rows in (512, 2048):
        figures[f"comparison of {rows}"] = times_as_fast(
            with_backward(summed_of_pairs, torch.randn(rows)),
            with_backward(summed_of_sorted, torch.randn(rows)),
        )
    for rows, wide in ((64, 32), (64, 64), (256, 32), (256, 128)):
        figures[f"distance of {rows}, {wide} wide"] = times_as_fast(
            with_backward(lambda x, y: (x[:, None] - y).pow(2).sum(2), *(
                torch.randn(rows, wide), torch.randn(rows, wide)
            )),
            with_backward(lambda x, y: torch.cdist(x, y).square(), *(
                torch.randn(rows, wide), torch.randn(rows, wide)
            )),
        )  # fmt: skip
    return figures


def kron_layer(x: Any, a: Any, b: Any) -> Any:
    return x @ torch.kron(a, b)


def kron_in_order(x: Any, a: Any, b: Any) -> Any:
    """Rows of x as matrices: first one factor, then the other."""
    apart = x.unflatten(1, (len(a), len(b)))
    return torch.einsum("tab,ac,bd->tcd", apart, a, b).flatten(1)


def running_sum(q: Any, k: Any, v: Any) -> Any:
    return torch.einsum("td,tde->te", q, torch.einsum("td,te->tde", k, v).cumsum(0))


def running_sum_in_blocks(q: Any, k: Any, v: Any) -> Any:
    state = q.new_zeros(q.shape[1], v.shape[1])
    out = []
    for qs, ks, vs in zip(q.split(64), k.split(64), v.split(64), strict=True):
        out.append((qs @ ks.t()).tril() @ vs + qs @ state)
        state = state + ks.t() @ vs
    return torch.cat(out)


def pooled(x: Any, y: Any, w: Any) -> Any:
    return torch.einsum("tc,td->tcd", x, y).flatten(1) @ w.flatten(0, 1)


def pooled_in_order(x: Any, y: Any, w: Any) -> Any:
    return torch.einsum("tc,cde,td->te", x, w, y)


def sylvester(a: Any, c: Any) -> Any:
    """X of aX + Xa = c, a symmetric, as one system."""
    one = torch.eye(len(a))
    whole = torch.einsum("ij,kl->ikjl", a, one) + torch.einsum("ij,kl->ikjl", one, a)
    return torch.linalg.solve(whole.reshape(a.numel(), a.numel()), c.flatten())


def sylvester_by_eigenvalues(a: Any, c: Any) -> Any:
    values, vectors = torch.linalg.eigh(a)
    inside = (vectors.t() @ c @ vectors) / (values[:, None] + values)
    return vectors @ inside @ vectors.t()


@measures(
    td730_outer_product_then_reduced__OUTER_LOW="least",
    td730_outer_product_then_reduced__OUTER_HIGH="most",
)
def outer_products() -> Figures:
    figures = {}

    def compare(name: str, apart: Any, together: Any, *given: Any) -> None:
        figures[name] = times_as_fast(
            with_backward(apart, *(x.clone() for x in given)),
            with_backward(together, *(x.clone() for x in given)),
        )

    for rows, side in ((64, 16), (64, 32), (512, 16), (512, 32)):
        given = torch.randn(rows, side * side), torch.randn(side, side), torch.randn(side, side)
        compare(f"kron of {side} × {side}, {rows} rows", kron_layer, kron_in_order, *given)
    for steps, wide in ((256, 32), (512, 64)):
        given = tuple(torch.randn(steps, wide) for _ in range(3))
        name = f"running sum of {steps}, {wide} wide"
        compare(name, running_sum, running_sum_in_blocks, *given)
    for rows, wide in ((64, 64), (512, 64)):
        given = torch.randn(rows, wide), torch.randn(rows, wide), torch.randn(wide, wide, 8)
        compare(f"pooled, {rows} rows, {wide} wide", pooled, pooled_in_order, *given)
    for size in (16, 24):
        half = torch.randn(size, size)
        given = half @ half.t() + torch.eye(size), torch.randn(size, size)
        compare(f"Sylvester, {size}", sylvester, sylvester_by_eigenvalues, *given)
    return figures


@measures(
    td734_diagonal_matrix_written_out__DIAGONAL_LOW="least",
    td734_diagonal_matrix_written_out__DIAGONAL_HIGH="most",
)
def diagonals() -> Figures:
    """Products with a diagonal matrix, and the density of a normal distribution whose covariance is
    one, against the same by elements."""
    normal, full = torch.distributions.Normal, torch.distributions.MultivariateNormal
    figures = {}
    for size, columns in ((128, 32), (256, 256), (1024, 64)):
        given = torch.rand(size), torch.randn(size, columns)
        figures[f"product of {size}, {columns} columns"] = times_as_fast(
            with_backward(lambda v, w: torch.diag(v) @ w, *(x.clone() for x in given)),
            with_backward(lambda v, w: v[:, None] * w, *(x.clone() for x in given)),
        )
    for rows, size in ((64, 16), (1024, 8), (1024, 29)):
        given = torch.randn(rows, size), torch.rand(rows, size) + 0.5
        x = torch.randn(rows, size)
        figures[f"normal density of {rows}, {size} wide"] = times_as_fast(
            with_backward(lambda m, v, x=x: full(m, torch.diag_embed(v)).log_prob(x), *given),
            with_backward(lambda m, v, x=x: normal(m, v.sqrt()).log_prob(x).sum(1), *given),
        )
    return figures


@measures(
    td735_enlarged_then_projected__SMALL_LOW="least",
    td735_enlarged_then_projected__SMALL_HIGH="most",
)
def enlarged() -> Figures:
    """A convolution of single pixels after and before its input is made larger."""
    larger = partial(nn.functional.interpolate, mode="bilinear", align_corners=False)
    figures = {}
    for channels, classes, size, times in ((64, 8, 32, 4), (128, 2, 16, 8), (32, 16, 64, 4)):
        project = nn.Conv2d(channels, classes, 1)
        x = torch.randn(2, channels, size, size)
        figures[f"{channels} to {classes} channels, {size} × {size}, {times} times"] = (
            times_as_fast(
                with_backward(
                    lambda x, p=project, n=times: p(larger(x, scale_factor=n)), x.clone()
                ),
                with_backward(
                    lambda x, p=project, n=times: larger(p(x), scale_factor=n), x.clone()
                ),
            )
        )
    return figures


@measures(td739_mostly_zeros__SPARSE_LOW="least", td739_mostly_zeros__SPARSE_HIGH="most")
def zeros() -> Figures:
    """Of a sparse product: its time ÷ that of a dense one ÷ the share that is not zero."""
    figures = {}
    for rows, wide in ((512, 128), (2000, 32), (2000, 256), (6000, 16)):
        for share in (0.002, 0.005, 0.02):
            dense = (torch.rand(rows, rows) < share).float()
            for form, sparse in (
                ("CSR", dense.to_sparse_csr()), ("COO", dense.to_sparse_coo().coalesce())
            ):  # fmt: skip
                times = times_as_fast(
                    with_backward(partial(torch.mm, dense), torch.randn(rows, wide)),
                    with_backward(partial(torch.sparse.mm, sparse), torch.randn(rows, wide)),
                )
                name = f"{form}, {rows} rows, {wide} wide, {share:.1%} not zero"
                figures[name] = 1 / times / share
    return figures
