"""A Fourier transform of a length that a large prime divides

## What it measures
Calls of `torch.fft` that take longer than a call's fixed cost, and whose length has a prime factor
of 61 or more: 8,191 is a prime, 511 is 7 · 73. Seen while torch calls are counted. With a device:
the kernels of all transforms in the trace.

## Why it is slow
Fast Fourier transforms divide the length into small primes. What is left with a large prime is
computed by a detour, such as two transforms of more than twice the length. Its backward is a
transform of the same length.

## What to do
Pad to the next length that only 2, 3 and 5 divide (`scipy.fft.next_fast_len`): a convolution by
`irfft(rfft(x, n) * rfft(k, n), n)` gives the same result for every `n` that is long enough. Where
the spectrum itself is wanted, choose a window or a crop of such a length.

## How the gain is computed
The calls' time, with its backward, divided by how much faster transforms of a near, fast length
were: the least measured at the low end, the most at the high end. With a device, high end: nothing
is left of the kernels. On an H200 a step with transforms of 2,048 instead of 2,053 numbers was
9.4 ms shorter, and the longer ones had taken 9.7 ms of it.

## When this advice is wrong
If the frequencies must be exactly those of this length.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.roofline import OpWork, Work
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, Gain, count, ns, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.device_waits import kernels_ns, shortened_cuts
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.units import duration, percent

CODE = "TD743"
NAME = "fft-of-awkward-length"
CLASS = "compute"
UNTRIED = "the script must pad what it transforms"

_MEASURED = (
    "Measured with torch 2.13, one core: rfft and irfft with their backward, 2 million numbers in"
    " rows of 131 to 65,521, against the next length that only 2, 3 and 5 divide:"
)
FASTER_LOW = Threshold(
    1.5, "times as fast", f"{_MEASURED} the least (benchmarks/rule_constants.py td743)."
)
FASTER_HIGH = Threshold(
    5, "times as fast", f"{_MEASURED} the most (benchmarks/rule_constants.py td743)."
)
FAST_PRIME = Threshold(
    5,
    "largest prime factor",
    "scipy.fft.next_fast_len chooses such lengths for real input; libraries have kernels for them"
    " (https://docs.scipy.org/doc/scipy/reference/generated/scipy.fft.next_fast_len.html).",
)


# Torch's names of transforms that compute, in a trace.
TRANSFORM = "aten::_fft"


def check(
    budget: Budget,
    phases: Phases,
    ops: Ops,
    stacks: Stacks | None,
    work: Work | None,
    device: DeviceTime | None,
) -> Found | None:
    part = part_of_calls(phases, ops, stacks, lambda x: x.fft_ns)
    if part is None:
        return None
    worst, length = part.lines[0].at, part.lines[0].fft_length
    forward, backward = part.ns, part.backward_ns
    if budget.has_device:
        forward = kernels_ns(budget, work, device, lambda x: _transforms(x) and not x.backward)
        backward = kernels_ns(budget, work, device, lambda x: _transforms(x) and x.backward)
    whole = forward + backward
    fast, prime = next_fast(length), _largest_prime(length)
    return Found(
        summary=(
            f"Fourier transforms{where(worst)} in {worst.function} have a length of {length:,},"
            f" {'a prime' if prime == length else f'a multiple of the prime {prime:,}'}: they take"
            f" {duration(whole)} per step"
            f" ({percent(whole / budget.step_ns)}) with their backward."
        ),
        evidence=(
            count("length of the transform", length, "ops"),
            count("its largest prime factor", prime, "ops"),
            ns("these transforms", forward, "trace" if budget.has_device else "baseline"),
            ns("their backward", backward, "trace" if budget.has_device else "baseline"),
        ),
        fix=Fix(
            f"Pad to {fast:,}{where(worst)}, the next length with small prime factors alone. A"
            " convolution stays the same.",
            "review",
            action=f"Transform at length {fast:,}",
            code=f"torch.fft.rfft(x, n={fast})  # not n={length}; scipy.fft.next_fast_len finds it",
        ),
        gain=_on_device(budget, whole)
        if budget.has_device
        else part.gain_times_as_fast(FASTER_LOW, FASTER_HIGH),
        at=worst,
    )


def _transforms(op: OpWork) -> bool:
    return op.name.startswith(TRANSFORM)


def _on_device(budget: Budget, spent: float) -> Gain:
    low = spent * (1 - 1 / FASTER_LOW)
    return Gain(
        low,
        spent,
        f"low end: {FASTER_LOW} times as fast; high end: nothing is left of these kernels.",
        ("compute",),
        shortened_cuts(budget, low),
        shortened_cuts(budget, spent),
    )


def _largest_prime(length: int) -> int:
    prime = 2
    while prime * prime <= length:
        if length % prime:
            prime += 1
        else:
            length //= prime
    return length


def next_fast(length: int) -> int:
    """The next length of which no larger prime is a factor."""
    while _largest_prime(length) > FAST_PRIME:
        length += 1
    return length


def fires() -> Evidence:
    """A convolution of 4,096 positions at a length of 8,191."""
    return _convolution(8191)


def clear() -> Evidence:
    """The same at 8,192."""
    return _convolution(0)


def _convolution(length: int) -> Evidence:
    transform = op_line(
        44,
        "forward",
        6,
        grad_calls=6.0,
        elapsed_ns=25e6,
        fft_ns=24e6 if length else 0.0,
        fft_length=length,
        at=at(44, "long_conv"),
    )
    rest = op_line(50, "forward", 40, grad_calls=40.0, elapsed_ns=10e6)
    step = budget(forward=35, backward=40, optimizer=2)
    clean = phases(forward=35, backward=40, optimizer=2)
    return Evidence().add(step, clean, ops(transform, rest))
