"""Gradients of tensors that nobody trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.torch_ops import Ops

from .harness import watch_code

SCRIPT = """
import torch
from torch.utils.checkpoint import checkpoint
encoder = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(8))).requires_grad_(False)
head = torch.nn.Linear(32, 4)
by_hand = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for step in range(100_000):
    x = torch.randn(16, 32)
    {required}  # HERE
    loss = head({encoded}).square().mean(){more}
    optimizer.zero_grad()
    loss.backward()
    {read}
    optimizer.step()
"""
HERE = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "# HERE" in line)


@pytest.mark.parametrize(
    ("required", "encoded", "more", "read", "found"),
    [
        ("x.requires_grad_()", "encoder(x)", "", "", True),
        ("x.requires_grad = True", "encoder(x)", "", "", True),
        ("pass", "encoder(x)", "", "", False),
        ("x.requires_grad_()", "encoder(x)", "", "seen = x.grad.abs().max()", False),
        ("x.requires_grad_(); x.register_hook(lambda g: g)", "encoder(x)", "", "", False),
        ("x.requires_grad_()", "checkpoint(encoder, x, use_reentrant=True)", "", "", False),
        ("pass", "encoder(x)", " + by_hand.sum()", "by_hand.data -= 0.1 * by_hand.grad", False),
    ],
    ids=["made", "set", "none", "read", "hooked", "checkpoint", "trained by hand"],
)
def test_gradients_that_nothing_reads(
    tmp_path: Path, required: str, encoded: str, more: str, read: str, found: bool
) -> None:
    script = SCRIPT.format(required=required, encoded=encoded, more=more, read=read)
    run = watch_code(tmp_path, script, windows=["baseline", "ops"], profiling=True, short=True)
    assert run.returncode == 0 and run.of("failure") == [], run.err
    ops = run.evidence().get(Ops)
    assert ops is not None
    assert [x.at and x.at.line for x in ops.input_gradients] == ([HERE] if found else [])
    for x in ops.input_gradients:
        assert 0.5 < x.alone / x.nodes < 1
        assert 0.5 < x.alone_ns / x.ns < 1
