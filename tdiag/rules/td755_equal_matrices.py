"""A batch of equal matrices is computed

## What it measures
Products, factorisations, solved equations and functions of single numbers whose result is a batch
of at least four equal matrices. The values are compared while torch calls are counted, on a CPU.

## Why it is slow
What depends on parameters alone is the same for each sample: the covariance of a Kalman filter, a
kernel matrix of fixed points, a rotation of learned angles. Expanded to the batch, each of the
following calls computes it once for each sample, forward and backward.

## What to do
Compute it without the batch dimension, and let it broadcast where it meets the samples: expand it
last, or not at all. Products and `torch.linalg` broadcast.

## How the gain is computed
The time of these calls × the share of further matrices, with their backward. Low end: the calls'
fixed cost stays, and a quarter of the rest. High end: only the fixed cost of the calls stays.

## When this advice is wrong
If the matrices are equal only at first, or in this data: they are compared in the counted steps.
"""

from __future__ import annotations

from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, OpLine, Ops
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, count, ns, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.examples import MS, at, budget, op_line, ops, phases
from tdiag.units import duration, percent

CODE = "TD755"
NAME = "equal-matrices"
CLASS = "compute"
UNTRIED = "the matrices must lose their batch dimension in the script"


def check(budget: Budget, phases: Phases, ops: Ops, dispatch: Dispatch | None) -> Found | None:
    part = part_of_calls(phases, ops, None, lambda x: x.alike_ns)
    if part is None:
        return None
    line, number = part.lines[0], max(x.matrices for x in part.lines)
    whole = part.ns + part.backward_ns
    fewer = part.gain(dispatch)
    fixed = dispatch.least_ns(part.lines) if dispatch else 0.0
    return Found(
        summary=(
            f"A batch of {number} equal matrices is computed, most of it{where(line.at)}: the"
            f" further ones take {duration(whole)} per step, {percent(whole / budget.step_ns)} with"
            " their backward."
        ),
        evidence=(
            count("equal matrices, at most", number, "ops"),
            ns("calls for further ones", part.ns, "baseline"),
            ns("their backward", part.backward_ns, "baseline"),
            count("torch calls of these lines", part.calls, "ops", "per_step"),
        ),
        fix=Fix(
            f"Compute them once{where(line.at)}: without the batch dimension, which is added where"
            " they meet the samples.",
            "review",
            action="Compute equal matrices once and broadcast them",
            code="p = torch.diag(variance)  # not torch.diag(variance).expand(batch, n, n)\n"
            "p = a @ p @ a.mT + q  # once, for all samples\n"
            "x = x + miss @ gain.mT  # broadcasts",
        ),
        gain=Gain(
            fewer.low_ns,
            max(fewer.low_ns, fewer.high_ns - fixed),
            f"high end: the {duration(part.ns)}, and {part.share.at_most}, without the calls' fixed"
            " cost; low end: the fixed cost stays, and a quarter of the rest.",
            part.phases,
        ),
        at=line.at,
    )


def fires() -> Evidence:
    """A filter whose covariance has the batch dimension."""
    return _filter(64)


def clear() -> Evidence:
    """One covariance for all samples."""
    return _filter(0)


def _filter(matrices: int) -> Evidence:
    def line(number: int, phase: str, ms: float, matrices: int) -> OpLine:
        again = ms * MS * (1 - 1 / matrices) if matrices else 0.0
        return op_line(
            number, phase, 160, grad_calls=160.0, elapsed_ns=ms * MS, alike_ns=again,
            matrices=matrices, at=at(number, "filter"),
        )  # fmt: skip

    counted = ops(line(57, "forward", 12, matrices), line(60, "forward", 8, 0))
    step = budget(forward=20, backward=30, optimizer=2)
    return Evidence().add(
        step,
        phases(forward=20, backward=30, optimizer=2),
        counted,
        Dispatch(op_ns=1500, grad_op_ns=7000),
    )
