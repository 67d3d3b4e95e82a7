"""Fourier transforms of lengths that a large prime divides, against fast lengths."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from constants import Figures, measures, times_as_fast
from constants.contracted import with_backward
from tdiag.rules.td743_fft_of_awkward_length import next_fast

NUMBERS = 2_000_000
LENGTHS = (131, 257, 511, 1021, 2047, 4093, 7808, 8191, 15992, 32749, 65521)


def there_and_back(length: int, x: Any) -> Any:
    return torch.fft.irfft(torch.fft.rfft(x, n=length), n=length)


@measures(td743_fft_of_awkward_length__FASTER_LOW="least",
          td743_fft_of_awkward_length__FASTER_HIGH="most")  # fmt: skip
def transforms() -> Figures:
    figures = {}
    for length in LENGTHS:
        rows = torch.randn(NUMBERS // length, length)
        figures[f"length {length}"] = times_as_fast(
            with_backward(partial(there_and_back, length), rows.clone()),
            with_backward(partial(there_and_back, next_fast(length)), rows.clone()),
        )
    return figures
