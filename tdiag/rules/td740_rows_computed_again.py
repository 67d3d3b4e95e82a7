"""Layers compute copies of the same rows

## What it measures
Products and convolutions that take longer than a call's fixed cost, and whose input has every row
several times: in groups of one size, side by side (`repeat_interleave`, `expand`) or one sequence
after another (`repeat`, `tile`). Also functions of single numbers, such as `sin` or a product,
whose result has every row or column several times. The values are compared while torch calls are
counted, on a CPU.

## Why it is slow
An encoder that runs on `x.repeat_interleave(k, 0)` computes each picture or user k times, forward
and backward, and keeps k times the activations: for each of its captions, of its samples of a
latent, of the candidates that are scored for it.

## What to do
Run the layers on the rows once, and repeat, expand or index their result. Where random numbers come
in (dropout, a sampled latent), repeat just before.

## How the gain is computed
The time of these calls × the share of further copies, with their share of the backward. If backward
was not measured by line, theirs takes four times as long as that of other calls at the high end,
and a quarter at the low end. There the calls' fixed cost stays, and a quarter of the rest (half of
all, if the fixed cost of a call is not known).

## When this advice is wrong
If the copies get different weights or masks within a call. A normalisation over the batch gives the
same numbers either way.
"""

from __future__ import annotations

from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import CopiedRows, Dispatch, Ops
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, count, ns, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.units import duration, percent

CODE = "TD740"
NAME = "rows-computed-again"
CLASS = "compute"
UNTRIED = "the layers must run before the rows are copied"
BY_WORK = True


def check(
    budget: Budget, phases: Phases, ops: Ops, stacks: Stacks | None, dispatch: Dispatch | None
) -> Found | None:
    if not ops.copied:
        return None
    part = part_of_calls(phases, ops, stacks, lambda x: x.copied_ns)
    if part is None:
        return None
    most = max(ops.copied, key=lambda x: x.ns)
    whole = part.ns + part.backward_ns
    layer = part.lines[0].at
    computed = "" if most.at == layer else f", and computed again{where(layer)}"
    return Found(
        summary=(
            f"Every number is there {most.copies} times{where(most.at)}{computed}: the further"
            f" copies take {duration(whole)} per step"
            f" ({percent(whole / budget.step_ns)}) with their backward."
        ),
        evidence=(
            count("copies of a row, at most", most.copies, "ops"),
            ns("layers on further copies", part.ns, "baseline"),
            ns("their backward", part.backward_ns, "baseline"),
        ),
        fix=Fix(
            f"Run the layers{where(layer)} on each row once, and copy their result"
            f"{where(most.at)}.",
            "review",
            action="Copy the result of the layers, not their input",
            code="states = encoder(x).repeat_interleave(k, dim=0)"
            "  # not encoder(x.repeat_interleave(k, dim=0))",
        ),
        gain=part.gain(dispatch),
        at=most.at,
    )


def fires() -> Evidence:
    """A picture encoded for each of its five captions."""
    return _encoded(copies=5)


def clear() -> Evidence:
    """Encoded once."""
    return _encoded(copies=1)


def _encoded(copies: int) -> Evidence:
    again = 30e6 * (1 - 1 / copies)
    encoder = op_line(18, "forward", 6, grad_calls=6.0, elapsed_ns=30e6, copied_ns=again)
    rest = op_line(24, "forward", 9, grad_calls=9.0, elapsed_ns=6e6)
    counted = ops(encoder, rest)
    if copies > 1:
        copied = (CopiedRows(at=at(44, "main"), ns=again, copies=copies),)
        counted = Ops(steps=counted.steps, lines=counted.lines, copied=copied)
    step = budget(forward=36, backward=72, optimizer=4)
    return Evidence().add(step, phases(forward=36, backward=72, optimizer=4), counted)
