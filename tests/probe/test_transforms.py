"""Fourier transforms of awkward lengths, as the probe sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.torch_ops import Ops

from .counted import count

SCRIPT = """
import torch
fft = torch.fft
taps = torch.nn.Parameter(torch.randn(64, 1022))
optimizer = torch.optim.SGD([taps], lr=0.01)
for step in range(100_000):
    x = torch.randn(64, 1022)
    loss = {made}.abs().mean() + taps.mean()  # HERE
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
HERE = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "# HERE" in line)


@pytest.mark.parametrize(
    ("made", "length"),
    [
        ("fft.irfft(fft.rfft(taps, n=8191) * fft.rfft(x, n=8191), n=8191)", 8191),
        ("fft.irfft(fft.rfft(taps, n=8192) * fft.rfft(x, n=8192), n=8192)", 0),
        ("fft.fft(taps.repeat(8, 1))", 1022),  # 2 · 7 · 73
        ("fft.irfft(fft.rfft(taps.repeat(8, 1)))", 1022),
        ("fft.fft(taps.repeat(8, 1), dim=0)", 0),  # 512 rows
        ("fft.fft2(taps.view(64, 14, 73))", 73),
        ("fft.fftn(taps.repeat(8, 1), s=(509, 1024))", 509),
    ],
)
def test_lengths_that_a_large_prime_divides(tmp_path: Path, made: str, length: int) -> None:
    script = SCRIPT.format(made=made)
    run = count(tmp_path, script)
    assert run.returncode == 0 and run.of("failure") == []
    ops = run.evidence().get(Ops)
    assert ops is not None
    found = {x.at.line: x for x in ops.lines if x.fft_ns}
    assert {line: x.fft_length for line, x in found.items()} == ({HERE: length} if length else {})
    assert all(0 < x.fft_ns <= x.elapsed_ns for x in found.values())
