"""Zeros that were only filled in part are multiplied whole

## What it measures
Products, convolutions and `einsum` calls that take longer than a call's fixed cost, with a tensor
that the step made of zeros (`torch.zeros`, `F.pad`) and wrote at most half of: the share of its
slices, dimension by dimension, with any value but zero. What it took to make and to fill the rest
counts with its first product. Read while torch calls are counted, on a CPU.

## Why it is slow
Weights of a few frequencies put into a spectrum of all of them, channels or sequences padded to a
size that nothing needs: the rest is multiplied, gets a gradient, and is written and read again.

## What to do
Multiply the part that is not zero (`x[..., :modes]`), and put the result into zeros of the full
size afterwards, if anything needs it.

## How the gain is computed
The calls' time × the share that is not written, with its backward. If backward was not measured by
line, that takes four times as long as for other calls at the high end, and a quarter at the low
end. There the calls' fixed cost stays, and a quarter of the rest (half of all, if the fixed cost of
a call is not known).

## When this advice is wrong
If the part that is written changes from step to step and its size must stay the same (a compiled
model, a CUDA graph).
"""

from __future__ import annotations

from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, Ops
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, count, ns, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.units import duration, percent

CODE = "TD742"
NAME = "zeros-multiplied"
CLASS = "compute"
UNTRIED = "the script must choose the part before it multiplies"
BY_WORK = True


def check(
    budget: Budget, phases: Phases, ops: Ops, stacks: Stacks | None, dispatch: Dispatch | None
) -> Found | None:
    part = part_of_calls(phases, ops, stacks, lambda x: x.unwritten_ns)
    if part is None:
        return None
    whole = part.ns + part.backward_ns
    worst = part.lines[0].at
    return Found(
        summary=(
            f"A tensor of zeros, of which at most half is filled, is multiplied whole{where(worst)}"
            f" in {worst.function}: the rest takes {duration(whole)} per step"
            f" ({percent(whole / budget.step_ns)}) with its backward."
        ),
        evidence=(
            ns("multiplying what is not filled", part.ns, "baseline"),
            ns("its backward", part.backward_ns, "baseline"),
            count("torch calls of these lines", part.calls, "ops", "per_step"),
        ),
        fix=Fix(
            f"Multiply only the part that is filled{where(worst)}, and put the result into zeros"
            " afterwards.",
            "review",
            action="Multiply the part that is not zero",
            code="out[..., :modes] = torch.einsum('bix,iox->box', x[..., :modes], weight)"
            "  # not with the weight padded to all",
        ),
        gain=part.gain(dispatch),
        at=worst,
    )


def fires() -> Evidence:
    """The weights of 128 frequencies in a spectrum of 1,200."""
    return _spectrum(unwritten=25e6)


def clear() -> Evidence:
    """The 128 frequencies alone."""
    return _spectrum(unwritten=0.0)


def _spectrum(unwritten: float) -> Evidence:
    product = op_line(
        46,
        "forward",
        4,
        grad_calls=4.0,
        elapsed_ns=28e6,
        unwritten_ns=unwritten,
        at=at(46, "forward"),
    )
    rest = op_line(47, "forward", 40, grad_calls=40.0, elapsed_ns=8e6)
    step = budget(forward=36, backward=46, optimizer=2)
    return Evidence().add(step, phases(forward=36, backward=46, optimizer=2), ops(product, rest))
