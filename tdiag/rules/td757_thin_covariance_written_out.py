"""A covariance of a few factors is written out and factored whole

## What it measures
Matrices `F @ F.mT + D`, where F has at most a quarter as many columns as rows and D is diagonal,
that are factored (`torch.linalg.cholesky`, `MultivariateNormal`), inverted or solved with: the time
of making them, of that, and of solving with the factor. The values of D are looked at. Without a
device.

## Why it is slow
Factoring n rows takes n³ ÷ 3 multiplications, forward, and more in backward. With k factors the
inverse and the determinant follow from a matrix of k rows (the Woodbury identity and the matrix
determinant lemma): about n k².

## What to do
`torch.distributions.LowRankMultivariateNormal(mean, F, d)` computes it this way, with `d` the
diagonal. With inducing points or random features the same identity serves by hand.

## How the gain is computed
What these calls and their backward took, written out ÷ by their factors, in measurements of several
sizes, up to 64 rows and beyond.

## When this advice is wrong
If something else needs the matrix itself. The result differs by rounding, and where D is close to
zero by more.
"""

from __future__ import annotations

from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, count, ns, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.examples import MS, at, budget, op_line, ops, phases
from tdiag.units import duration, percent

CODE = "TD757"
NAME = "thin-covariance-written-out"
CLASS = "compute"
UNTRIED = "the factors must be passed on in the script"

_MEASURED = (
    "Measured with torch 2.13 on a CPU, with backward: MultivariateNormal ÷"
    " LowRankMultivariateNormal of 2 to 32 factors, one and two threads"
)
_BY = "(benchmarks/rule_constants.py td757)."
MANY_ROWS = Threshold(
    96,
    "rows",
    "Between the sizes of the benchmark behind the four below: from 96 rows on its factors were at"
    " least twice as fast, up to 64 rows at most three times.",
)
FEW_FASTER_LOW = Threshold(1.02, "times as fast", f"{_MEASURED}: the least of 24 to 64 rows {_BY}")
FEW_FASTER_HIGH = Threshold(3.0, "times as fast", f"{_MEASURED}: the most of 24 to 64 rows {_BY}")
FASTER_LOW = Threshold(2.1, "times as fast", f"{_MEASURED}: the least of 96 to 512 rows {_BY}")
FASTER_HIGH = Threshold(23, "times as fast", f"{_MEASURED}: the most of 96 to 512 rows {_BY}")


def check(budget: Budget, phases: Phases, ops: Ops) -> Found | None:
    part = part_of_calls(phases, ops, None, lambda x: x.thin_ns)
    if budget.has_device or part is None:
        return None
    worst = max(part.lines, key=lambda x: x.thin_rank)
    line, whole = part.lines[0], part.ns + part.backward_ns
    many = worst.thin_rows >= MANY_ROWS
    ends = (FASTER_LOW, FASTER_HIGH) if many else (FEW_FASTER_LOW, FEW_FASTER_HIGH)
    return Found(
        summary=(
            f"A matrix of {worst.thin_rank} factors and a diagonal is written out with"
            f" {worst.thin_rows} rows and factored whole, most of it{where(line.at)}:"
            f" {duration(whole)} per step, {percent(whole / budget.step_ns)} with its backward."
        ),
        evidence=(
            count("factors, at most", worst.thin_rank, "ops"),
            count("rows", worst.thin_rows, "ops"),
            ns("making it, factoring and solving", part.ns, "baseline"),
            ns("their backward", part.backward_ns, "baseline"),
        ),
        fix=Fix(
            f"Compute with the factors{where(line.at)}: LowRankMultivariateNormal instead of"
            " MultivariateNormal, or the Woodbury identity.",
            "review",
            action="Compute with the factors of the covariance",
            code="normal = torch.distributions.LowRankMultivariateNormal(mean, F, d)\n"
            "# not MultivariateNormal(mean, F @ F.mT + torch.diag_embed(d))",
        ),
        gain=part.gain_times_as_fast(*ends),
        at=line.at,
    )


def fires() -> Evidence:
    """The joint sales of 96 shops as 6 factors and a diagonal."""
    return _shops(18 * MS)


def clear() -> Evidence:
    """The same distribution, given its factors."""
    return _shops(0.0)


def _shops(thin: float) -> Evidence:
    made = op_line(
        91, "forward", 25, grad_calls=20.0, elapsed_ns=20 * MS, thin_ns=thin, at=at(91, "chain"),
        thin_rank=6 if thin else 0, thin_rows=96 if thin else 0,
    )  # fmt: skip
    layers = op_line(63, "forward", 12, grad_calls=12.0, elapsed_ns=8 * MS)
    step = budget(forward=28, backward=40, optimizer=2)
    return Evidence().add(step, phases(forward=28, backward=40, optimizer=2), ops(made, layers))
