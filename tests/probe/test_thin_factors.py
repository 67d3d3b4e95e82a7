"""Covariances of a few factors and a diagonal that are factored whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from .counted import check_share

SCRIPT = """
import torch
from torch import nn
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal
net = nn.Linear(16, 48 * 12)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
eye = torch.eye(48)
def density(f, d):
    {made}
    return {density}  # HERE
for step in range(100_000):
    x = torch.randn(64, 16)
    out = net(x).view(64, 48, 12)
    loss = -(density(0.1 * out[..., 1:], out[..., 0].exp() + 0.1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
HERE = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "# HERE" in line)
MEAN = "torch.zeros(48)"
WHOLE = f"MultivariateNormal({MEAN}, covariance_matrix=C).log_prob({MEAN})"


@pytest.mark.parametrize(
    ("made", "density"),
    [
        ("C = f @ f.mT + torch.diag_embed(d)", WHOLE),
        ("C = torch.diag_embed(d) + f @ f.transpose(1, 2)", "torch.linalg.cholesky(C)"),
        ("C = torch.bmm(f, f.mT) + 0.1 * eye.expand(64, 48, 48)", "torch.linalg.slogdet(C)[1]"),
        ("C = f @ f.mT + 0.1 * eye", "torch.linalg.solve(C, d.unsqueeze(-1))"),
    ],
)
def test_a_few_factors_and_a_diagonal(made: str, density: str, tmp_path: Path) -> None:
    script = SCRIPT.format(made=made, density=density)
    ops = check_share(tmp_path, script, HERE, lambda x: x.thin_ns, least=0.2)
    assert {(x.thin_rank, x.thin_rows) for x in ops.lines if x.at.line == HERE} == {(11, 48)}
    assert any(x.thin_ns for x in ops.lines if x.at.line == HERE - 1)


@pytest.mark.parametrize(
    ("made", "density"),
    [
        ("C = f @ f.mT + torch.diag_embed(d) + 0.01", "torch.linalg.cholesky(C)"),
        ("a = f.repeat(1, 1, 2); C = a @ a.mT + torch.diag_embed(d)", "torch.linalg.cholesky(C)"),
        ("C = f @ f.mT + torch.diag_embed(d)", "C.square()"),
        ("C = f @ (2 * f).mT + torch.diag_embed(d)", "torch.linalg.slogdet(C)[1]"),
        ("C = 0", f"LowRankMultivariateNormal({MEAN}, f, d).log_prob({MEAN})"),
    ],
)
def test_another_matrix(made: str, density: str, tmp_path: Path) -> None:
    script = SCRIPT.format(made=made, density=density)
    check_share(tmp_path, script, HERE, lambda x: x.thin_ns, most=0.0)
