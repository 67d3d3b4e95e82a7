"""Whose gradients the nodes of a graph, their products and their numbers are for."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from tdiag.probe.graph_parts import ComputedFor, parts
from tdiag.probe.wire import MOST_GRAPH_NODES

BATCH = 2


def of(model: nn.Module, x: torch.Tensor) -> dict[str, ComputedFor]:
    """Parts of a training of ``model[0]`` and ``model[1]``, by the names of their owners."""
    owners = {id(p): name for name, child in model.named_children() for p in child.parameters()}
    found = parts(model(x).grad_fn, lambda leaf: owners.get(id(leaf)))
    return {"".join(sorted(filter(None, who))): part for who, part in found.items()}


def test_a_node_counts_for_all_that_it_leads_to() -> None:
    found = of(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)), torch.randn(BATCH, 4))
    # Of each layer its own: the bias's leaf, the weight's, and the node that transposes it.
    assert {who: part.nodes for who, part in found.items()} == {"0": 4, "1": 3, "01": 1}
    # The second layer's input gradient is for the first layer; that one's input takes none.
    assert found["0"].products == BATCH * (8 * 1 + 4 * 8)
    assert found["1"].products == BATCH * 8 * 1
    assert found["01"].numbers == BATCH  # the gradient of the result


@pytest.mark.parametrize(
    ("layer", "size", "products"),
    [
        (nn.Conv2d(4, 6, 3), 8, 6 * 6 * 6 * 4 * 9),
        (nn.Conv2d(4, 6, 3, stride=2, groups=2), 9, 4 * 4 * 6 * 2 * 9),
        (nn.ConvTranspose2d(4, 6, 4, 2, 1), 8, 8 * 8 * 4 * 6 * 16),
        (nn.ConvTranspose2d(4, 6, 4, 2, 1, groups=2), 8, 8 * 8 * 4 * 3 * 16),
    ],
)
def test_products_of_convolutions(layer: nn.Module, size: int, products: int) -> None:
    x = torch.randn(BATCH, 4, size, size)
    found = of(nn.Sequential(nn.Identity(), layer), x)
    assert found["1"].products == BATCH * products
    found = of(nn.Sequential(nn.BatchNorm2d(4), layer), x)
    assert found["0"].products == found["1"].products == BATCH * products


def test_products_of_attention_and_of_matrices_without_bias() -> None:
    a, b = torch.randn(3, 5, 7, requires_grad=True), torch.randn(3, 7, 9, requires_grad=True)
    [part] = parts((a @ b).grad_fn, lambda leaf: None).values()
    assert part.products == 2 * 3 * 5 * 7 * 9
    [part] = parts((a.detach() @ b).grad_fn, lambda leaf: None).values()
    assert part.products == 3 * 5 * 7 * 9
    [part] = parts((a[0] @ b.detach()[0]).grad_fn, lambda leaf: None).values()
    assert part.products == 5 * 7 * 9


def test_a_frozen_convolution_and_own_functions() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            return x * 2

        @staticmethod
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            return gradient * 2

    frozen = nn.Conv2d(3, 4, 3).requires_grad_(False)
    x = torch.randn(1, 3, 8, 8, requires_grad=True)
    [part] = parts(Double.apply(frozen(x)).grad_fn, lambda leaf: "x").values()
    assert part == ComputedFor(nodes=3, products=0, numbers=2 * 4 * 36 + 3 * 64)


def test_a_loss_that_is_a_leaf_has_no_graph() -> None:
    assert parts(None, id) == {}


def test_a_graph_too_large_and_too_many_owners() -> None:
    weights = [torch.zeros((), requires_grad=True) for _ in range(100)]
    with pytest.raises(OverflowError):
        parts(torch.stack(weights).grad_fn, id)
    with pytest.raises(OverflowError):
        parts(functools.reduce(torch.add, [weights[0]] * 2 * MOST_GRAPH_NODES).grad_fn, id)
