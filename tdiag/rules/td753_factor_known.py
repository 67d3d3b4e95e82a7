"""A matrix is factored whose factor is known

## What it measures
Calls of `torch.linalg.cholesky` on a product of a lower triangular matrix and its transpose, by the
user's line, also within a library: `torch.distributions.MultivariateNormal` factors a covariance to
use it, and once more to check it. The matrix is looked at: all above its diagonal must be zero.
Without a device.

## Why it is slow
Cholesky's factor of `L @ L.mT` is L (up to the signs of its columns). The product, its
factorisation and the backward of both only lead back to it, and the factor has lost precision.

## What to do
Use the triangular matrix: `MultivariateNormal(mean, scale_tril=L)` instead of
`covariance_matrix=L @ L.mT`. Its documentation says that all it computes is based on
`scale_tril`, and that a covariance is only used to compute it.

## How the gain is computed
Low end: the factorisations and their backward. High end: all torch calls of the lines that factor,
because the covariance is also compared with its transpose to check it, and the products, with the
backward of both.

## When this advice is wrong
The product stays if something else needs it. L must have a positive diagonal (`exp`, `softplus`) to
be a `scale_tril`; without one, its columns have other signs.
"""

from __future__ import annotations

from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, count, ns, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.examples import MS, at, budget, op_line, ops, phases
from tdiag.units import duration, percent

CODE = "TD753"
NAME = "factor-known"
CLASS = "compute"
UNTRIED = "the factor must be passed on in the script"


def check(budget: Budget, phases: Phases, ops: Ops) -> Found | None:
    if budget.has_device:
        return None
    surely = part_of_calls(phases, ops, None, lambda x: x.factored_ns)
    at_most = part_of_calls(phases, ops, None, _goes)
    if surely is None or at_most is None:
        return None
    line = surely.lines[0]
    known = surely.ns + surely.backward_ns
    return Found(
        summary=(
            f"A product of a triangular matrix and its transpose is factored{where(line.at)}: the"
            f" factor is that matrix. This takes {duration(known)},"
            f" {percent(known / budget.step_ns)} of the step."
        ),
        evidence=(
            ns("factorisations", surely.ns, "baseline"),
            ns("their backward", surely.backward_ns, "baseline"),
            ns("all that these lines call, and the products", at_most.ns, "baseline"),
            count(
                "torch calls of these lines", sum(x.calls for x in surely.lines), "ops", "per_step"
            ),
        ),
        fix=Fix(
            f"Pass the triangular matrix on{where(line.at)} instead of its product with its"
            " transpose: scale_tril= of MultivariateNormal instead of covariance_matrix=.",
            "review",
            action="Use the triangular factor that is there",
            code="normal = torch.distributions.MultivariateNormal(mean, scale_tril=L)",
        ),
        gain=Gain(
            surely.ns + surely.least_backward_ns,
            at_most.ns + at_most.most_backward_ns,
            "low end: the factorisations; high end: all torch calls of their lines, and the"
            f" products; with {surely.share.at_most}.",
            at_most.phases,
        ),
        at=line.at,
    )


def _goes(line: OpLine) -> float:
    return line.elapsed_ns if line.factored_ns else line.multiplied_out_ns


def fires() -> Evidence:
    """A mixture density network whose covariances are made of their factors."""
    return _density(factored=8 * MS)


def clear() -> Evidence:
    """Covariances that were measured."""
    return _density(factored=0.0)


def _density(factored: float) -> Evidence:
    made = op_line(
        93, "forward", 25, grad_calls=2.0, elapsed_ns=18 * MS, factored_ns=factored,
        at=at(93, "density"),
    )  # fmt: skip
    product = op_line(
        92, "forward", 1, grad_calls=1.0, elapsed_ns=1 * MS, multiplied_out_ns=factored / 8,
        at=at(92, "density"),
    )  # fmt: skip
    layers = op_line(63, "forward", 12, grad_calls=12.0, elapsed_ns=14 * MS)
    step = budget(forward=33, backward=44, optimizer=4)
    return Evidence().add(
        step, phases(forward=33, backward=44, optimizer=4), ops(made, product, layers)
    )
