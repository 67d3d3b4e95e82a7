"""Which calls the probe takes for a broadcast that is summed right away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.torch_ops import OpLine, Ops

from .harness import watch_code

EACH, COMPARED, OUTER = "weight.flatten()[:600]", "comparison", "outer"
DIAGONAL, ENLARGED = "diagonal", "enlarged"
VARIANCES = "torch.diag_embed(x.square() + 1)"
LARGER = "F.interpolate(x.view(2, 16, 8, 8), scale_factor=8)"
SCRIPT = """
import torch
from torch import einsum as e
from torch import nn
from torch.nn import functional as F
weight = nn.Parameter(torch.randn(64, 64))
optimizer = torch.optim.SGD([weight], lr=0.001)
for step in range(100_000):
    x, t = torch.randn(32, 64), torch.randn(600)
    y = {made}
    optimizer.zero_grad()
    (y.sum() + weight.sum()).backward()
    optimizer.step()
"""


def line_of(folder: Path, made: str) -> OpLine:
    script = SCRIPT.format(made=made)
    run = watch_code(folder, script, windows=["baseline", "ops"], profiling=True, steps=60)
    assert run.returncode == 0 and run.of("failure") == []
    ops = run.evidence().get(Ops)
    assert ops is not None
    return max((line for line in ops.lines if line.at.line == 10), key=lambda line: line.calls)


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        ("(x[:, :, None] * weight).sum(1)", "product"),
        ("(x[:, :, None] * weight - x[:, :, None] * weight.mT).sum(1)", "product"),
        ("(x[:, None] - weight).pow(2).sum(-1)", "difference"),
        ("(x[:, None] - weight).abs().sum(dim=-1)", "difference"),
        ("(x[:, None] - weight).norm(dim=-1)", "difference"),
        (
            "(x.unsqueeze(0).expand(64, 32, 64) - weight.unsqueeze(1).expand(64, 32, 64))"
            ".pow(2).sum(dim=2)",
            "difference",
        ),
        (
            f"torch.logsumexp(({EACH}).expand(600, 600).masked_fill(t < t[:, None], -9.0), 1)",
            COMPARED,
        ),
        (f"(~(t < t[:, None]) * ({EACH})).sum(dim=1)", COMPARED),
        (f"(t[:, None] <= t).float() @ ({EACH})", COMPARED),
        (f"(t[:, None] <= t).sum(1) * ({EACH})", COMPARED),
        ("torch.randn(32, 1024) @ torch.kron(weight[:32, :32], weight[32:, :32])", OUTER),
        (
            "F.linear(torch.randn(4, 1024), 2 * torch.kron(weight[:32, :32], weight[:32, 32:]))",
            OUTER,
        ),
        (f"torch.outer(t, {EACH}) @ t", OUTER),
        ("e('td,tde->te', x, e('td,te->tde', x, x @ weight).cumsum(0))", OUTER),
        ("e('tc,td->tcd', x, x @ weight).flatten(1) @ torch.randn(4096, 4)", OUTER),
        (
            "torch.linalg.solve((e('ij,kl->ikjl', weight[:16, :16], torch.eye(16))"
            " + e('ij,kl->ikjl', torch.eye(16), weight[:16, :16])).reshape(256, 256),"
            " weight[:4].flatten())",
            OUTER,
        ),
        ("torch.diag(weight.flatten()[:200]) @ torch.randn(200, 8)", DIAGONAL),
        (f"torch.linalg.solve(2 * {VARIANCES}, x[..., None] * weight[0, 0])", DIAGONAL),
        (f"torch.linalg.cholesky({VARIANCES}).slogdet()[1] * weight[0, 0]", DIAGONAL),
        (f"torch.distributions.MultivariateNormal(x @ weight, {VARIANCES}).log_prob(x)", DIAGONAL),
        (f"F.conv2d({LARGER}, weight[:8, :16, None, None])", ENLARGED),
    ],
)
def test_spread_and_summed(tmp_path: Path, made: str, kind: str) -> None:
    line = line_of(tmp_path, made)
    assert line.contraction == kind
    assert 0 < line.contracted_ns <= line.elapsed_ns * 1.01


@pytest.mark.parametrize(
    "made",
    [
        "x @ weight",
        "(x * weight[0]).sum(1)",
        "(x[:, :, None] * weight).relu().sum(1)",
        "(x[:, :, None] * weight).sum()",
        f"torch.softmax(torch.outer(t, {EACH}).masked_fill(t < t[:, None], -9.0), 1)",  # attention
        f"(torch.outer(t, {EACH}) * (t < t[:, None])).sum(1)",  # values of all pairs
        f"(t[:, None] <= t[:9]).sum(1) * ({EACH})",
        f"torch.outer(t, {EACH}).sin() @ t",  # Fourier features
        f"(torch.outer(t, {EACH}) * torch.randn(600, 600)) @ t",
        f"torch.outer(t, {EACH})[0, :64] @ weight",
        "e('td,ed->te', weight.repeat(9, 1), weight.repeat(9, 1)) @ weight.repeat(9, 1)",
        "(x @ weight[:, :4]) @ weight[:4].repeat(1, 99) @ torch.randn(6336, 4)",  # two layers
        f"({VARIANCES} + torch.ones(64, 64)) @ weight",  # full
        f"torch.linalg.solve(torch.randn(32, 64, 64), {VARIANCES}) * weight",  # an inverse
        f"{VARIANCES}.view(32, 4096) @ weight.repeat(64, 1)",  # rows of a feature map
        "torch.diag(weight) * x",  # the diagonal of a matrix
        f"F.conv2d({LARGER}.relu(), weight[:8, :16, None, None])",
        f"F.conv2d({LARGER}, weight[:32, :16, None, None])",  # to more channels
        f"F.conv2d({LARGER}, weight.view(-1)[:1152].view(8, 16, 3, 3))",
    ],
)
def test_what_one_call_does_not_replace(tmp_path: Path, made: str) -> None:
    assert line_of(tmp_path, made).contraction == ""
