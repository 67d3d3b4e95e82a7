"""Which calls the probe takes for a broadcast that is summed right away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.torch_ops import OpLine, Ops

from .harness import watch_code

SCRIPT = """
import torch
from torch import nn
weight = nn.Parameter(torch.randn(64, 64))
optimizer = torch.optim.SGD([weight], lr=0.001)
for step in range(100_000):
    x = torch.randn(32, 64)
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
    return max((line for line in ops.lines if line.at.line == 8), key=lambda line: line.calls)


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        ("(x[:, :, None] * weight).sum(1)", "product"),
        ("(x[:, None] - weight).pow(2).sum(-1)", "difference"),
        ("(x[:, None] - weight).abs().sum(dim=-1)", "difference"),
        ("(x[:, None] - weight).norm(dim=-1)", "difference"),
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
    ],
)
def test_what_one_call_does_not_replace(tmp_path: Path, made: str) -> None:
    assert line_of(tmp_path, made).contraction == ""
