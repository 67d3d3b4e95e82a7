"""Products of a triangular matrix and its transpose that are factored again."""

from __future__ import annotations

from pathlib import Path

import pytest

from .counted import check_share

SCRIPT = """
import torch
from torch import nn
from torch.distributions import MultivariateNormal
net = nn.Linear(16, 24 * 24)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
def density(a):
    L = 0.01 * a.tril(-1) + torch.eye(24)
    {made}
    return {density}  # HERE
for step in range(100_000):
    x = torch.randn(64, 16)
    loss = -(density(net(x).view(64, 24, 24))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
HERE = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "# HERE" in line)
LOG_PROB = ".log_prob(torch.zeros(24))"
COVARIANCE = f"MultivariateNormal(torch.zeros(24), covariance_matrix=C){LOG_PROB}"


@pytest.mark.parametrize(
    ("made", "density"),
    [
        ("C = L @ L.mT", "torch.linalg.cholesky(C)"),
        ("C = torch.bmm(L, L.transpose(1, 2))", COVARIANCE),
        ("C = L.matmul(L.transpose(-1, -2))", "torch.linalg.cholesky(C.expand(2, 64, 24, 24))"),
    ],
)
def test_the_factor_that_is_there(made: str, density: str, tmp_path: Path) -> None:
    script = SCRIPT.format(made=made, density=density)
    ops = check_share(tmp_path, script, HERE, lambda x: x.factored_ns, least=0.1)
    (product,) = (x for x in ops.lines if x.at.line == HERE - 1)
    assert product.multiplied_out_ns > 0


@pytest.mark.parametrize(
    ("made", "density"),
    [
        ("C = L @ L.mT + 0.1 * torch.eye(24)", "torch.linalg.cholesky(C)"),
        ("C = a @ a.mT", "torch.linalg.cholesky_ex(C)[0]"),  # not triangular
        ("C = L @ a.mT", "torch.linalg.cholesky_ex(C)[0]"),
        ("C = L", f"MultivariateNormal(torch.zeros(24), scale_tril=C){LOG_PROB}"),
        ("C = L @ L.mT", "C * 2"),
    ],
)
def test_another_matrix(made: str, density: str, tmp_path: Path) -> None:
    script = SCRIPT.format(made=made, density=density)
    check_share(tmp_path, script, HERE, lambda x: x.factored_ns, most=0.0)
